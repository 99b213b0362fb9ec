"""Starts ranks as env_ranks.py does, but forks them once torch is loaded, which takes each rank of
its own most of a short job's time.

python fork_ranks.py --ranks 2 plain_ddp.py --steps 40
python fork_ranks.py --ranks 2 mgpu_trainers.pytorch.ddp --steps 40
python fork_ranks.py plain_ddp.py --steps 40 // --ranks 4 hybrid.py: one job after the other
python fork_ranks.py --module tensorflow --cluster tf_loop.py: workers of a cluster of TensorFlow
"""

import argparse
import ast
import gc
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from _port import free_port

HERE = Path(__file__).parent
FROM_THE_ROOT = "tests."
"""What scripts find only once they have added the repository to their path."""
NEXT = "//"
"""Separates jobs."""


def list_imports(script: str) -> Iterator[str]:
    """The modules that the script imports first of all."""
    for statement in ast.parse((HERE / script).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            yield statement.module
        elif isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)


def load(scripts: list[str], module: str) -> None:
    """Loads what ranks need, without the garbage collector: all of it stays."""
    gc.disable()
    import_module(module)
    for script in scripts:
        if script.endswith(".py"):  # a trainer must find out itself which process started it
            for name in list_imports(script):
                if not name.startswith(FROM_THE_ROOT):
                    import_module(name)
    gc.freeze()
    gc.enable()


def describe_ranks(ranks: int, *, cluster: bool) -> Iterator[dict[str, str]]:
    """The variables that tell each rank its place; none in a cluster of one."""
    if not cluster:
        meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            yield {**meeting, **size, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    elif ranks == 1:
        yield {}
    else:
        addresses = [f"localhost:{free_port()}" for _ in range(ranks)]
        for index in range(ranks):
            task = {"type": "worker", "index": index}
            yield {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def run_rank(variables: dict[str, str], script: str, options: list[str]) -> None:
    os.environ.update(variables)
    if script.endswith(".py"):
        script = str(HERE / script)
        sys.argv = [script, *options]
        runpy.run_path(script, run_name="__main__")
    else:
        sys.argv = [script, *options]
        runpy.run_module(script, run_name="__main__")
    sys.exit()


def run_job(job: argparse.Namespace) -> tuple[list[int], int]:
    """The pids of its ranks, and the largest of their exit codes."""
    pids = []
    for variables in [*describe_ranks(job.ranks, cluster=job.cluster)]:
        pid = os.fork()
        if pid == 0:
            run_rank(variables, job.script, job.rest)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return pids, max(map(abs, codes))


def split_jobs(words: list[str]) -> Iterator[list[str]]:
    while NEXT in words:
        at = words.index(NEXT)
        yield words[:at]
        words = words[at + 1 :]
    yield words


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--cluster", action="store_true", help="of TensorFlow")
    # DistributedDataParallel and optimizers load it.
    options.add_argument("--module", default="torch._dynamo", help="what is loaded first")
    options.add_argument("script", help="of this folder, or a module")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    program, jobs_words = sys.orig_argv[: -len(sys.argv) + 1], [*split_jobs(sys.argv[1:])]
    jobs = [options.parse_args(words) for words in jobs_words]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    load([job.script for job in jobs], jobs[0].module)
    largest = 0
    for job, words in zip(jobs, jobs_words, strict=True):
        sys.orig_argv[:] = [*program, *words]  # as if it were the only one
        began = time.time()
        pids, code = run_job(job)
        largest = max(largest, code)
        if len(jobs) > 1:
            print(f"{job.script} from {began} to {time.time()}:", *pids, flush=True)
    sys.exit(largest)


if __name__ == "__main__":
    main()
