"""Each rank runs on its own core; with --hog RANK other processes compute on that rank's core."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist
from _slow import parser
from plain_ddp import add_options, train

SPIN = "while True: pass"
HOGS = 2


@contextmanager
def hog() -> Iterator[None]:
    """A process that computes for ever, on the cores of this one."""
    process = subprocess.Popen([sys.executable, "-S", "-c", SPIN], env={})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    options = add_options(parser())
    options.add_argument("--hog", type=int, default=-1, help="whose core is shared")
    args = options.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    with ExitStack() as running:
        for _ in range(HOGS if rank == args.hog else 0):
            running.enter_context(hog())
        train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
