"""No module, no optimizer, no loss.backward(): tensors, autograd.grad and an all-reduce each."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    slow = Slow(args, rank)
    shapes = [(64, 512), (512,), (512, 512), (512,), (512, 8), (8,)]
    same = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=same) / 16 for shape in shapes]
    for weight in weights:
        weight.requires_grad_()
    truth = torch.randn(64, 8, generator=same)
    own = torch.Generator().manual_seed(100 + rank)

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(64, 64, generator=own)
        y = x @ truth

        w1, b1, w2, b2, w3, b3 = weights
        hidden = slow.in_backward(torch.relu(x @ w1 + b1))
        slow.here("forward")
        loss = ((torch.relu(hidden @ w2 + b2) @ w3 + b3 - y) ** 2).mean()

        gradients = torch.autograd.grad(loss, weights)
        for gradient in gradients:
            dist.all_reduce(gradient)

        slow.here("optimizer")
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=0.02 / world)
        slow.here("between")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
