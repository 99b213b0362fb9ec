"""A training loop with one expensive habit, and the same with the habit mended by hand.

Alone, or a rank of DistributedDataParallel if RANK is set; `--spawn` starts two ranks itself, as
scripts do whose launcher leaves OMP_NUM_THREADS alone.
"""

import argparse
import copy
import gc
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, get_worker_info

MIB = 1 << 20


class Samples(Dataset[torch.Tensor]):
    """Each sample takes so long. `alone`: it fails in a worker process."""

    def __init__(self, count: int, width: int, seconds: float, *, alone: bool) -> None:
        self.count, self.width, self.seconds, self.alone = count, width, seconds, alone

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.alone and get_worker_info() is not None:
            raise RuntimeError("this data set cannot be used in a worker process")
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((self.width,), index / self.count)


class Net(nn.Module):
    """Layers, and a chain of small operations that a compiler can fuse."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(args.width, args.width) for _ in range(args.layers))
        self.chain = args.chain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        for _ in range(self.chain):
            x = torch.sin(x) * 0.99 + 0.01
        return x.square().mean()


def batches(args: argparse.Namespace) -> Iterator[torch.Tensor]:
    """As many as there are steps, in epochs of `--epoch` of them."""
    samples = Samples(args.epoch * args.batch, args.width, args.sample_ms / 1000, alone=args.alone)
    loader = DataLoader(
        samples,
        args.batch,
        num_workers=args.workers,
        persistent_workers=args.persistent,
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


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    model: nn.Module = Net(args)
    if args.compile:
        model.compile()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, foreach=args.foreach, fused=args.fused
    )
    kept: list[list[int]] = [[] for _ in range(args.garbage)]  # what the collector looks through
    if args.freeze:
        gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        saving = Saving(args, folder)
        for step, batch in enumerate(batches(args)):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.garbage and step % 4 == 0:  # the collector looks through everything once
                gc.collect()
            if args.save_states:
                optimizer.state_dict()
            time.sleep(args.step_ms / 1000)
            saving.save(step)
            if step == args.steps:
                break
    del kept


def rank(number: int, args: argparse.Namespace, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    train(args)
    dist.destroy_process_group()


def options() -> argparse.ArgumentParser:
    known = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("steps", 5000), ("batch", 4), ("width", 32), ("layers", 2), ("chain", 0), ("epoch", 2000),
        ("workers", 0), ("garbage", 0), ("threads", 0), ("save-every", 5),
    ):  # fmt: skip
        known.add_argument(f"--{name}", type=int, default=default)
    for name in ("sample-ms", "step-ms", "save-ms"):
        known.add_argument(f"--{name}", type=float, default=0.0)
    for name in (
        "alone", "persistent", "background", "check-file", "compile", "freeze", "spawn",
        "save-states",
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
