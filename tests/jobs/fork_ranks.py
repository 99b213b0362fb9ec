"""Starts ranks as env_ranks.py does, but forks them once torch is loaded, which takes each rank of
its own most of a short job's time.

python fork_ranks.py --ranks 2 plain_ddp.py --steps 40
"""

import argparse
import os
import runpy
import sys
from pathlib import Path

from _port import free_port


def run_rank(rank: int, script: str, options: list[str]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
    sys.exit()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("script")
    options.add_argument("rest", nargs=argparse.REMAINDER)
    args = options.parse_args()
    script = str(Path(__file__).parent / args.script)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(free_port()))
    os.environ["WORLD_SIZE"] = str(args.ranks)
    import torch._dynamo  # noqa: F401  # DistributedDataParallel and optimizers load it

    ranks = []
    for rank in range(args.ranks):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, script, args.rest)
        ranks.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
