"""Ranks that all-reduce in a loop until one of them fails, in the way given by the options."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def fall(how: str, step: int) -> None:
    if how == "raise":
        raise ValueError(f"bad sample at step {step}")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)


def wait_for_nobody(rank: int, numbers: torch.Tensor) -> None:
    """Rank 0 waits for a key that the fallen rank never set, the others for rank 0."""
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["never"])
    dist.recv(numbers, src=0)


def train(rank: int, args: argparse.Namespace) -> None:
    if args.port:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    numbers = torch.ones(1000)
    for step in range(args.steps):
        dist.all_reduce(numbers)
        time.sleep(0.05)
        if step == 5 and rank == 0:
            print("on its way", flush=True)
        if step == args.at and rank == args.rank:
            if args.how == "leave":
                break
            fall(args.how, step)
        if step == args.at and args.stuck:
            wait_for_nobody(rank, numbers)
    dist.destroy_process_group()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("how", choices=("none", "raise", "exit", "kill", "term", "segv", "leave"))
    options.add_argument("--rank", type=int, default=2)
    options.add_argument("--at", type=int, default=30)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--stuck", action="store_true", help="survivors wait for ever")
    options.add_argument("--spawn", action="store_true")
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--port", type=int, default=0)
    args = options.parse_args()
    if args.spawn:
        spawn(train, args=(args,), nprocs=args.ranks)
    else:
        train(int(os.environ["RANK"]), args)


if __name__ == "__main__":
    main()
