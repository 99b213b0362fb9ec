"""Data-parallel training whose ranks get their data as the options say; by default correctly."""

import argparse
from collections.abc import Iterator

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

SAMPLES = 1024


def sample(index: int) -> torch.Tensor:
    return torch.randn(256, generator=torch.Generator().manual_seed(index))


class Noise(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return sample(index)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, *, constant: bool) -> None:
        self.constant = constant

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(SAMPLES):
            yield torch.ones(256) if self.constant else sample(index)


def options() -> argparse.Namespace:
    known = parser()
    known.add_argument("--no-sampler", action="store_true", help="every rank has the whole dataset")
    known.add_argument("--no-set-epoch", action="store_true")
    known.add_argument("--iterable", action="store_true", help="a stream that nobody divides")
    known.add_argument("--constant", action="store_true", help="the stream is of ones")
    known.add_argument("--seeds", choices=("same", "per-rank"), default="same")
    known.add_argument("--global-batch-size", type=int, default=64)
    known.add_argument("--undivided", action="store_true", help="each rank loads the global batch")
    known.add_argument("--lr", type=float, default=0.02)
    return known.parse_args()


def batches(args: argparse.Namespace) -> Iterator[torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    seed = rank if args.seeds == "per-rank" else 7
    torch.manual_seed(seed)
    batch = args.global_batch_size // (1 if args.undivided else world)
    sampler: DistributedSampler[torch.Tensor] | None = None
    if args.iterable:
        loader = DataLoader[torch.Tensor](Stream(constant=args.constant), batch)
    elif args.no_sampler:
        loader = DataLoader(Noise(), batch, shuffle=True)
    else:
        sampler = DistributedSampler(Noise(), seed=seed)
        loader = DataLoader(Noise(), batch, sampler=sampler)
    epoch = 0
    while True:
        if sampler is not None and not args.no_set_epoch:
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(args: argparse.Namespace) -> None:
    slow = Slow(args, dist.get_rank())
    source = batches(args)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(args.steps):
        inputs = next(source)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        optimizer.step()


if __name__ == "__main__":
    given = options()
    dist.init_process_group("gloo")
    train(given)
    dist.destroy_process_group()
