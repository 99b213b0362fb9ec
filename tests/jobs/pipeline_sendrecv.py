"""A pipeline by hand: each rank is a stage, activations go down and gradients come back."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn

MICRO_BATCHES = 2
ROWS, WIDTH = 64, 512


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    first, last = rank == 0, rank == world - 1
    torch.manual_seed(rank)
    slow = Slow(args, rank, parts=MICRO_BATCHES)
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    slow.in_optimizer(optimizer)

    for step in range(1, args.steps + 1):
        slow.turn()
        held: list[tuple[torch.Tensor, torch.Tensor]] = []
        total = 0.0
        for _ in range(MICRO_BATCHES):
            slow.here("input")
            inputs = torch.randn(ROWS, WIDTH)
            if not first:
                dist.recv(inputs, rank - 1)
                inputs.requires_grad_()
            outputs = slow.in_backward(stage(inputs))
            slow.here("forward")
            if not last:
                dist.send(outputs.detach(), rank + 1)
            held.append((inputs, outputs))
        for inputs, outputs in held:
            if last:
                loss = (outputs - 1).square().mean() / MICRO_BATCHES
                loss.backward()
                total += loss.item()
            else:
                gradient = torch.empty(ROWS, WIDTH)
                dist.recv(gradient, rank + 1)
                outputs.backward(gradient)
            if not first and inputs.grad is not None:
                dist.send(inputs.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if last and step % 10 == 0:
            print(f"step {step} loss {total:.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
