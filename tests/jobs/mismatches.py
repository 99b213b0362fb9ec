"""Ranks that call different collectives, in every way that people manage to; and healthy ones.

Starts its own ranks. With `--dump` a thread of each rank writes torch's flight recorder into that
folder once the loop has run for `--after` seconds, and when all have, the job ends itself. With
`--sockets` each rank runs torch's worker server there, until somebody ends the job.
"""

import argparse
import functools
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as dist_c
from torch.multiprocessing.spawn import start_processes

recorder: Any = dist_c  # not all of it is declared
FAULTS = (
    *("skip", "extra", "operation", "dtype", "branch", "silent"),
    *("asleep", "ends-early", "deadlock"),
)
KINDS = (*FAULTS, "healthy", "healthy-groups", "healthy-ddp")
FAULT_AT = 6
"""The step at which something goes wrong."""


class Loop:
    """One training loop without a model: what matters are its collectives."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self.kind, self.rank, self.steps, self.pause = args.kind, rank, args.steps, args.pause
        self.guilty = rank == args.rank
        self.grads, self.loss = torch.ones(8), torch.ones(1)
        pairs = ([0, 1], [1, 2], [0, 2]) if dist.get_world_size() > 2 else ()
        self.pairs = [dist.new_group(pair) for pair in pairs]
        self.begun = threading.Event()

    def run(self) -> None:
        self.begun.set()
        for step in range(self.steps):
            self.step(step)

    def step(self, step: int) -> None:
        wrong = self.guilty and step == FAULT_AT
        if self.pause:
            time.sleep(self.pause)
        if wrong and self.kind == "asleep":
            self.stuck()
        if self.kind == "ends-early" and self.guilty and step >= FAULT_AT:
            time.sleep(3600)
        if wrong and self.kind == "extra":
            dist.all_reduce(self.loss)  # the extra one
        if self.kind == "silent":
            self.alike(wrong)
            return
        if not (wrong and self.kind == "skip"):
            self.average()
        self.metrics(wrong)
        if self.kind == "deadlock" and self.rank < 3:
            self.cross(step)
        if self.kind == "healthy-groups" and self.rank < 3:
            self.in_pairs()
        dist.barrier()

    def alike(self, wrong: bool) -> None:
        """Whoever leaves one of these out pairs others with wrong ones, and nothing stops it."""
        dist.all_reduce(self.grads)  # first of three
        if not wrong:
            dist.all_reduce(self.grads)  # second of three
        dist.all_reduce(self.grads)  # third of three

    def average(self) -> None:
        dist.all_reduce(self.grads)  # gradients

    def metrics(self, wrong: bool) -> None:
        if wrong and self.kind == "operation":
            gathered = [torch.ones(8) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, self.grads)  # the wrong one
        elif wrong and self.kind == "dtype":
            dist.all_reduce(self.loss.int())  # the wrong type
        elif wrong and self.kind == "branch":
            dist.broadcast(self.loss, 0)  # the rank's own branch
        else:
            dist.all_reduce(self.loss)  # metrics
        if self.rank == 0:
            dist.broadcast(self.grads, 0)  # as its source
        else:
            dist.broadcast(self.grads, 0)  # as everybody else

    def cross(self, step: int) -> None:
        """Each pair of the first three ranks has a group. Once each begins with another one."""
        ab, bc, ac = self.pairs
        order = {0: [ab, ac], 1: [ab, bc], 2: [bc, ac]}[self.rank]
        if step == FAULT_AT and self.rank > 0:
            order.reverse()
        for group in order:
            dist.all_reduce(self.loss, group=group)  # in a pair

    def in_pairs(self) -> None:
        first, second, _ = self.pairs
        if self.rank in (0, 1):
            dist.all_reduce(self.loss, group=first)
        if self.rank in (1, 2):
            dist.all_reduce(self.loss, group=second)
        if self.rank == 0:
            dist.send(self.loss, 2)
        elif self.rank == 2:
            dist.recv(self.loss, 0)

    def stuck(self) -> None:
        time.sleep(3600)  # where it sleeps


class Ddp(Loop):
    def run(self) -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
        self.begun.set()
        for _ in range(self.steps):
            if self.pause:
                time.sleep(self.pause)
            wrapped(torch.randn(8, 64)).sum().backward()


def work(rank: int, args: argparse.Namespace, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=args.ranks)
    loop = (Ddp if args.kind == "healthy-ddp" else Loop)(args, rank)
    if args.sockets:
        args.server = recorder._WorkerServer(str(args.sockets / f"{rank}.sock"))
    if args.dump:
        end = functools.partial(dump, rank, args, loop.begun)
        threading.Thread(target=end, daemon=True).start()
    loop.run()
    if args.dump or args.sockets:
        time.sleep(3600)
    dist.destroy_process_group()


def dump(rank: int, args: argparse.Namespace, begun: threading.Event) -> None:
    begun.wait()
    time.sleep(args.after)
    written: Callable[[], bytes]
    if args.json:
        written, name = functools.partial(recorder._dump_fr_trace_json, True, False), "rank{}.json"
    else:
        written, name = functools.partial(recorder._dump_fr_trace, True, True, False), "trace_{}"
    path = args.dump / f"{name.format(rank)}.new"
    path.write_bytes(written())
    path.rename(path.with_suffix(""))
    while not all((args.dump / name.format(other)).exists() for other in range(args.ranks)):
        time.sleep(0.05)
    os._exit(0)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--ranks", type=int, default=4)
    options.add_argument("--rank", type=int, default=2, help="who does wrong")
    options.add_argument("--steps", type=int, default=100_000)
    options.add_argument("--pause", type=float, default=0.0, help="seconds a step")
    options.add_argument("--sockets", type=Path, help="a folder for torch's worker servers")
    options.add_argument("--dump", type=Path)
    options.add_argument("--after", type=float, default=1.0, help="seconds into the loop")
    options.add_argument("--json", action="store_true")
    args = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        start_processes(work, args=(args, meeting), nprocs=args.ranks, start_method="fork")


if __name__ == "__main__":
    main()
