"""Gradient accumulation over four batches, with no_sync on the first three."""

import argparse
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate

MICRO_BATCHES = 4


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank, parts=MICRO_BATCHES)

    def collate(samples: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        slow.here("input")
        return list(default_collate(samples))

    x = torch.randn(MICRO_BATCHES * 32 * args.steps, 256)
    loader = DataLoader(TensorDataset(x, x[:, :1] * 2), 32, collate_fn=collate)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)

    for index, (inputs, targets) in enumerate(loader):
        if index % MICRO_BATCHES == 0:
            slow.turn()
        last = index % MICRO_BATCHES == MICRO_BATCHES - 1
        with nullcontext() if last else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets) / MICRO_BATCHES
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and slow.turns % 10 == 0:
                print(f"step {slow.turns} loss {loss.item() * MICRO_BATCHES:.4f}", flush=True)
        slow.here("between")
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
