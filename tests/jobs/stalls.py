"""DistributedDataParallel with periodic stalls on one rank or on all."""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from _slow import Slow, parser
from plain_ddp import Blobs, Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

KINDS = ("none", "gc", "checkpoint", "evaluation", "sleep", "log")
CYCLES = 800_000
VALIDATION = 1024


class Stalls:
    """What the rank does every `every` turns; from `--ms` on it is long enough."""

    def __init__(self, args: argparse.Namespace, model: nn.Module, folder: Path) -> None:
        self.args = args
        self.model = model
        self.file = folder / f"{dist.get_rank()}"
        self.validation = DataLoader(Subset(Blobs(), range(VALIDATION)), 64)
        self.kept: list[list[object]] = []
        self.act: Callable[[], object] | None = None
        if args.stall != "none" and args.who in (dist.get_rank(), -1):
            self.act = getattr(self, args.stall)
        if args.stall == "gc" and self.act is not None:
            self.keep_objects()

    def turn(self, turns: int) -> None:
        if self.act is not None and turns % self.args.every == 0:
            if self.args.once:
                self.args.every = self.args.steps + 1
            self.act()

    def keep_objects(self) -> None:
        """A heap that the collector takes long to look through."""
        for _ in range(CYCLES):
            cycle: list[object] = []
            cycle.append(cycle)
            self.kept.append(cycle)

    def gc(self) -> None:
        gc.collect()

    def again(self, work: Callable[[], object]) -> None:
        end = time.perf_counter() + self.args.ms / 1000
        while time.perf_counter() < end:
            work()

    def checkpoint(self) -> None:
        self.again(lambda: torch.save(self.model.state_dict(), self.file))

    def sleep(self) -> None:
        time.sleep(self.args.ms / 1000)

    def log(self) -> None:
        weights = [
            parameter.detach().flatten()[:1000].tolist() for parameter in self.model.parameters()
        ]
        self.again(lambda: self.file.write_text(json.dumps(weights)))

    def evaluation(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.again(self.evaluate)
        self.model.train()

    def evaluate(self) -> None:
        for images, labels in self.validation:
            nn.functional.cross_entropy(self.model(images), labels)


def train(args: argparse.Namespace, folder: Path) -> None:
    torch.manual_seed(0)
    slow = Slow(args, dist.get_rank())
    data = Blobs()
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(data, seed=1)
    loader = DataLoader(data, 32, sampler=sampler)
    inner = Net("mlp", slow)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    stalls = Stalls(args, inner, folder)
    epoch = 0
    while slow.turns < args.steps:
        sampler.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            slow.turn()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            stalls.turn(slow.turns)
            if slow.turns == args.steps:
                break


def main() -> None:
    options = parser(steps=130)
    options.add_argument("--stall", choices=KINDS, default="none")
    options.add_argument("--every", type=int, default=20)
    options.add_argument("--once", action="store_true", help="the first time only")
    options.add_argument("--who", type=int, default=1, help="-1 is every rank")
    args = options.parse_args()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        train(args, Path(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
