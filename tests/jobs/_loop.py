"""The training loop of scripts that divide their model over ranks, on random data."""

import argparse
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn

ROWS, WIDTH = 64, 256


def start(args: argparse.Namespace) -> Slow:
    """Of each rank; all then make the same model."""
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(0)
    return Slow(args, rank)


def loop(steps: int, slow: Slow, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    slow.in_optimizer(optimizer)
    for step in range(1, steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(ROWS, WIDTH)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if dist.get_rank() == 0:
        print(f"turns {slow.turns}")


def main(train: Callable[[argparse.Namespace], None]) -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()
