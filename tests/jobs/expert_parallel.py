"""One expert per rank: samples go to the rank of their expert and back by all-to-all; only the
shared weights are reduced, by hand."""

import argparse
import sys

import torch
import torch.distributed as dist
from _rows import BATCH, WIDTH, loader, options, rows
from _slow import Slow
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    slow = Slow(args, rank)
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, 1)
    torch.manual_seed(1 + rank)
    expert = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, WIDTH))
    optimizer = torch.optim.Adam([*head.parameters(), *expert.parameters()], lr=1e-3)
    for x, y in loader(rows(args, world)[0], slow):
        if slow.turns == args.steps:
            break
        slow.turn()
        taken = all_to_all_single(torch.empty_like(x), x)
        given = all_to_all_single(torch.empty(BATCH, WIDTH), expert(taken))
        loss = nn.functional.mse_loss(head(x + given), y)
        optimizer.zero_grad()
        loss.backward()
        for weight in head.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = options().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
