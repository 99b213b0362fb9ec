"""The usual script: a DataLoader, DistributedDataParallel, forward, backward, step."""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate


class Blobs(Dataset[tuple[torch.Tensor, int]]):
    """Images in memory: making each when it is asked for took a tenth of these short steps."""

    def __init__(self) -> None:
        images = torch.randn(2048, 1, 16, 16, generator=torch.Generator().manual_seed(0))
        self.images = [image + index % 10 / 5 for index, image in enumerate(images)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], index % 10


class Net(nn.Module):
    def __init__(self, kind: str, slow: Slow) -> None:
        super().__init__()
        self.slow = slow
        if kind == "cnn":
            first = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            last = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten())
            self.first, self.last = first, nn.Sequential(last, nn.Linear(2048, 10))
        else:
            self.first = nn.Sequential(nn.Flatten(), nn.Linear(256, 768), nn.ReLU())
            self.last = nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.slow.in_backward(self.first(images))
        self.slow.here("forward")
        return torch.as_tensor(self.last(hidden))


class Turns:
    """When they are over. With a file `end`, rank 0 writes, once it is there, which turn is
    the last one, and only then joins that turn's collectives: no rank has passed it by then."""

    def __init__(self, count: int, end: Path | None, rank: int) -> None:
        self.count = count
        self.end = end
        self.last = Path(f"{end}.last")
        self.decides = rank == 0

    def begin(self, turn: int) -> None:
        if self.end and self.decides and self.end.exists() and not self.last.exists():
            new = Path(f"{self.last}.new")
            new.write_text(str(turn))
            new.rename(self.last)

    def over(self, turn: int) -> bool:
        if self.end and self.last.exists():
            self.count = min(self.count, int(self.last.read_text()))
        return turn >= self.count


def add_options(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    options.add_argument("--workers", type=int, default=0)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--persistent", action="store_true")
    options.add_argument("--end", type=Path, help="a file that ends the job once it is there")
    options.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    return options


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(0)
    slow = Slow(args, rank)

    def collate(samples: list[tuple[torch.Tensor, int]]) -> list[torch.Tensor]:
        slow.here("input")
        return list(default_collate(samples))

    data = Blobs()
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(data, seed=1)
    loader = DataLoader(
        data,
        args.batch,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.persistent,
        collate_fn=collate,
    )
    model = DistributedDataParallel(Net(args.model, slow))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    slow.in_optimizer(optimizer)
    turns = Turns(args.steps, args.end, rank)
    epoch = 0
    while not turns.over(slow.turns):
        sampler.set_epoch(epoch)
        epoch += 1
        for images, labels in loader:
            slow.turn()
            turns.begin(slow.turns)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            slow.here("between")
            if rank == 0 and slow.turns % 10 == 0:
                print(f"step {slow.turns} loss {loss.item():.4f}", flush=True)
            if turns.over(slow.turns):
                break
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = add_options(parser()).parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
