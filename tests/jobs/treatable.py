"""A training loop with one expensive habit, and the same with the habit mended by hand.

Alone, or a rank of DistributedDataParallel if RANK is set; `--spawn` starts two ranks itself, as
scripts do whose launcher leaves OMP_NUM_THREADS alone.
"""

import argparse
import copy
import functools
import gc
import multiprocessing
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, get_worker_info

MIB = 1 << 20


class Samples(Dataset[torch.Tensor]):
    """Each sample takes so long, and the first one of some batches longer. `alone`: it fails in a
    worker process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.count = args.epoch * args.batch
        self.width = args.width
        self.seconds, self.alone = args.sample_ms / 1000, args.alone
        self.slow_every, self.slow_seconds = args.batch * args.slow_every, args.slow_ms / 1000

    def __len__(self) -> int:
        return int(self.count)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.alone and get_worker_info() is not None:
            raise RuntimeError("this data set cannot be used in a worker process")
        if self.seconds:
            time.sleep(self.seconds)
        if self.slow_every and index % self.slow_every == 0:
            time.sleep(self.slow_seconds)
        return torch.full((self.width,), index / self.count)


class Block(nn.Module):
    """A layer whose operations keep much for the backward pass. `most`: calls of all blocks in a
    step above which it fails; 0: any."""

    calls = 0

    def __init__(self, width: int, most: int) -> None:
        super().__init__()
        self.layer, self.most = nn.Linear(width, width), most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Block.calls += 1
        if self.most and Block.calls > self.most:
            raise RuntimeError("a block was called twice in a step")
        x = self.layer(x)
        for _ in range(6):
            x = torch.sin(x)
        return x


class Net(nn.Module):
    """Layers, and a chain of small operations that a compiler can fuse. `wide`: it works on one
    large array instead. `images`: it pools what convolutions make of images with so many rows.
    `sensitive`: its result needs more digits than bfloat16 has. `floor`: the part of the loss that
    no training reduces."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.chain, self.wide, self.sensitive = args.chain, args.wide, args.sensitive
        self.floor = float(args.floor)
        self.images, self.view = args.images, args.view
        make = (
            functools.partial(nn.Conv2d, 32, 32, 1)
            if args.images
            else functools.partial(Block, args.width, args.layers if args.once else 0)
            if args.blocks
            else functools.partial(nn.Linear, args.width, args.width)
        )
        self.layers = nn.ModuleList(make() for _ in range(args.layers))
        self.blocks = args.blocks
        if args.checkpoint:
            for block in self.layers:
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.images:
            x = x[:, :1, None, None].expand(-1, 32, self.images, self.images)
        for layer in self.layers:
            x = layer(x) if self.blocks else torch.relu(layer(x))
            if self.images:
                x = nn.functional.max_pool2d(x, 7, 1, 3)
        if self.view:
            x = x.view(len(x), -1)
        if self.wide:
            x = x[:1, :1] * torch.ones(1, self.wide * MIB // 4)
            for _ in range(self.chain):
                x = x * 0.99
            return x.mean()
        for _ in range(self.chain):
            x = torch.sin(x) * 0.99 + 0.01
        if self.sensitive:
            x = (x + 1000) - 1000
        loss: torch.Tensor = x.square().mean() + self.floor
        return loss


def batches(args: argparse.Namespace) -> Iterator[torch.Tensor]:
    """As many as there are steps, in epochs of `--epoch` of them."""
    loader = DataLoader(
        Samples(args),
        args.batch,
        num_workers=args.workers,
        persistent_workers=args.persistent,
        prefetch_factor=args.prefetch or None,
    )
    for _ in range(args.steps // args.epoch + 1):
        yield from loader


class SlowStorage:
    """What is saved takes so long to write, without using a core."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __getstate__(self) -> dict[str, float]:
        time.sleep(self.seconds)
        return {"seconds": self.seconds}

    def __deepcopy__(self, _: object) -> "SlowStorage":
        return self


class Saving:
    """Saves every `--save-every` steps, for `--save-ms`. `--background`: in a thread."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        self.args = args
        self.path = Path(folder) / "checkpoint.pt"
        self.content = {"w": torch.zeros(MIB // 4), "slow": SlowStorage(args.save_ms / 1000)}
        self.thread: threading.Thread | None = None

    def save(self, step: int) -> None:
        if not self.args.save_ms or step % self.args.save_every:
            return
        if not self.args.background:
            torch.save(self.content, self.path)
            if self.args.check_file and self.path.stat().st_size < MIB:
                raise RuntimeError("the checkpoint is too short")
            return
        if self.thread is not None:
            self.thread.join()
        copied = copy.deepcopy(self.content)
        self.thread = threading.Thread(target=torch.save, args=(copied, self.path))
        self.thread.start()


def make_model(args: argparse.Namespace) -> nn.Module:
    model = Net(args)
    if args.compile:
        model.compile()
    if args.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return DistributedDataParallel(model) if dist.is_initialized() else model


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": 1e-3, "foreach": args.foreach, "fused": args.fused}
    if not args.sharded:
        return torch.optim.AdamW(model.parameters(), **settings)
    return ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, **settings
    )


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    model = make_model(args)
    optimizer = make_optimizer(args, model)
    kept: list[list[int]] = [[] for _ in range(args.garbage)]  # what the collector looks through
    recent: deque[list[list[int]]] = deque(maxlen=10)  # what makes it look often
    if args.freeze:
        gc.freeze()
    if args.collect_every:
        gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        saving = Saving(args, folder)
        for step, batch in enumerate(batches(args)):
            with torch.autocast("cpu", torch.bfloat16) if args.autocast else nullcontext():
                loss = model(batch)
            if args.penalty:
                gradients = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
                loss = loss + sum(gradient.square().sum() for gradient in gradients)
            loss.backward()
            Block.calls = 0
            optimizer.step()
            optimizer.zero_grad()
            if args.objects:
                recent.append([[number] for number in range(args.objects)])
            if args.collect_every and step % args.collect_every == 0:
                gc.collect(1)
            if args.garbage and step % 4 == 0:  # the collector looks through everything once
                gc.collect()
            if args.save_states:
                optimizer.state_dict()
            time.sleep(args.step_ms / 1000)
            saving.save(step)
            if step == args.steps:
                break
    del kept, recent


def rank(number: int, args: argparse.Namespace, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    train(args)
    dist.destroy_process_group()


def options() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("steps", 5000), ("batch", 4), ("width", 32), ("layers", 2), ("chain", 0), ("epoch", 2000),
        ("workers", 0), ("garbage", 0), ("threads", 0), ("save-every", 5), ("prefetch", 0),
        ("slow-every", 0), ("objects", 0), ("collect-every", 0), ("wide", 0),
        ("floor", 0), ("images", 0),
    ):  # fmt: skip
        known.add_argument(f"--{name}", type=int, default=default)
    for name in ("sample-ms", "step-ms", "save-ms", "slow-ms"):
        known.add_argument(f"--{name}", type=float, default=0.0)
    for name in (
        "alone", "persistent", "background", "check-file", "compile", "freeze", "spawn",
        "save-states", "blocks", "once", "checkpoint", "sensitive", "sharded",
        "autocast", "channels-last", "view", "penalty",
    ):  # fmt: skip
        known.add_argument(f"--{name}", action="store_true")
    for name in ("foreach", "fused"):
        known.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    return known


def main() -> None:
    args = options().parse_args()
    if args.spawn:
        with tempfile.TemporaryDirectory() as folder:
            meeting = f"file://{folder}/meeting"
            context = multiprocessing.get_context("spawn")
            started = [
                context.Process(target=rank, args=(number, args, meeting)) for number in (0, 1)
            ]
            for process in started:
                process.start()
            for process in started:
                process.join()
    elif "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(args)
        dist.destroy_process_group()
    else:
        train(args)


if __name__ == "__main__":
    main()
