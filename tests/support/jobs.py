"""Runs real training jobs for tests: one at a time on this machine; no process is left over."""

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from mgpu_probes.outside import processes
from mgpu_trainers import catalogue

JOBS = Path(__file__).parents[1] / "jobs"
STEADY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Without these, glibc makes some processes by chance twice as slow as others in memory-heavy work,
because it returns blocks to the system and takes them again. A healthy job must not have that."""
PROCESSES = "--processes"
"""The option of pytest by which it runs tests in so many processes (`forked_processes.py`)."""
IN_PARALLEL = "PYTEST_XDIST_WORKER" in os.environ or any(
    argument.startswith(PROCESSES) for argument in sys.argv
)
Launcher = Callable[..., list[str]]
"""Makes the command that starts a script of tests/jobs in so many ranks."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def torchrun(script: str, *options: str, ranks: int = 2) -> list[str]:
    """The command that starts one of the scripts in tests/jobs."""
    return [*TORCHRUN, str(ranks), str(JOBS / script), *options]


def plain(script: str, *options: str, ranks: int = 2) -> list[str]:
    """The same with a launcher that starts at once: torchrun takes seconds to load torch."""
    return [sys.executable, str(JOBS / "env_ranks.py"), "--ranks", str(ranks), script, *options]


def forked(script: str, *options: str, ranks: int = 2, module: str = "torch._dynamo") -> list[str]:
    """The same by a launcher that loads a module once and forks the ranks: for jobs in which it
    does not matter how ranks are started, and that are not examined from outside (the rank is not
    in the environment that others see)."""
    launcher = [sys.executable, str(JOBS / "fork_ranks.py"), "--module", module]
    return [*launcher, "--ranks", str(ranks), script, *options]


def forked_cluster(script: str, *options: str, ranks: int = 2) -> list[str]:
    """The same of workers of a cluster of TensorFlow."""
    job = forked(script, *options, ranks=ranks, module="tensorflow")
    return [*job[: job.index(script)], "--cluster", *job[job.index(script) :]]


def forked_in_turn(jobs: Sequence[Sequence[str]]) -> list[str]:
    """One launcher that runs these jobs of `forked` one after the other."""
    first, *others = jobs
    script = first.index(str(JOBS / "fork_ranks.py")) + 1
    return [*first, *(word for job in others for word in ("//", *job[script:]))]


@dataclass(frozen=True)
class Turn:
    """A job of `forked_in_turn`. `began`, `ended`: seconds since the epoch; `out`: what was printed
    meanwhile."""

    pids: frozenset[int]
    began: float
    ended: float
    out: str


_TURN = re.compile(r"^\S+ from ([\d.]+) to ([\d.]+): ([\d ]+)\n", re.MULTILINE)


def split_turns(out: str) -> list[Turn]:
    """The jobs of `forked_in_turn`, from what it printed."""
    turns, at = [], 0
    for found in _TURN.finditer(out):
        pids = frozenset(map(int, found[3].split()))
        turns.append(Turn(pids, float(found[1]), float(found[2]), out[at : found.start()]))
        at = found.end()
    return turns


forked_light: Launcher = partial(forked, module="torch")
"""For scripts without DistributedDataParallel and optimizers, which load half as much."""


def forked_trainer(name: str, **options: object) -> list[str]:
    """Two ranks of a trainer of PyTorch, in the same way."""
    trainer = catalogue.find(name)
    command = catalogue.command(trainer, 2, options)
    return forked(trainer.module, *command[command.index(trainer.module) + 1 :])


_holders = 0
"""How often this process has locked the machine."""


@contextmanager
def alone() -> Iterator[None]:
    """Locks the machine, because training jobs that compete for cores would falsify each other's
    timing. Tests that run in parallel share the lock, and so do jobs that one test runs at once."""
    global _holders
    with (Path(tempfile.gettempdir()) / "mgpu-jobs.lock").open("w") as lock:
        if not _holders:
            fcntl.flock(lock, fcntl.LOCK_SH if IN_PARALLEL else fcntl.LOCK_EX)
        _holders += 1
        try:
            yield
        finally:
            _holders -= 1


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Starts the command; at the end it and its descendants are killed."""
    with (
        alone(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | STEADY,
        ) as process,
    ):
        try:
            yield process
        finally:
            kill_family(process.pid)


def run(command: Sequence[str], seconds: float = 200.0) -> Ended:
    """Runs the command to its end; raises subprocess.TimeoutExpired after `seconds`."""
    with started(command) as process:
        out, err = process.communicate(timeout=seconds)
        return Ended(process.returncode, out, err)


def kill_family(pid: int) -> None:
    """Kills the process and its descendants: torchrun gives each rank a session of its own."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for child in (*process.children(recursive=True), process):
            with suppress(psutil.NoSuchProcess):
                child.kill()


def gone(pid: int) -> bool:
    """Whether the process has ended. A zombie counts: in a container nothing may reap orphans."""
    return not processes.is_alive(pid)


def until(condition: Callable[[], bool], seconds: float = 150.0) -> None:
    """Waits until the condition holds; raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition of the test did not become true")
        time.sleep(0.02)
