"""Ranks 0 and 1 wait for each other while rank 2 is dead and unburied."""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist


def die(group: str) -> None:
    """Of want of memory in this control group, where one is given."""
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
        kept = []
        while True:
            kept.append(bytearray(8 << 20))
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--group", default="")
    args = options.parse_args()
    dist.init_process_group("gloo")
    numbers = torch.ones(4)
    dist.all_reduce(numbers)
    if dist.get_rank() == 2:
        die(args.group)
    dist.recv(numbers, src=1 - dist.get_rank())


if __name__ == "__main__":
    main()
