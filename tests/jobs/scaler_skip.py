"""Mixed precision with a gradient scaler; each fifth turn overflows and its step is skipped."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    slow.in_optimizer(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    skipped = 0
    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(64, 256)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), x[:, :1] * 2)
        if step % 5 == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        slow.here("between")
        if rank == 0 and step % 10 == 1:
            print(f"step {step} loss {loss.item():.4f} skipped {skipped}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
