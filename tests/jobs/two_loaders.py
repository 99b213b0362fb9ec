"""Learning from few labels: each turn takes a batch from each of two loaders, and both feed one
backward pass."""

import argparse
import sys

import torch
import torch.distributed as dist
from _rows import BATCH, loader, options, rows
from _slow import Slow
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    data, _ = rows(args, dist.get_world_size())
    labelled = loader(data, slow)
    unlabelled = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for (x, y), (more, _) in zip(labelled, unlabelled, strict=False):
        slow.turn()
        told, guessed = model(torch.cat([x, more])).split(BATCH)
        loss = nn.functional.mse_loss(told, y) + guessed.var()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"turns {slow.turns}")
    del model, optimizer


def main() -> None:
    args = options().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
