"""Gradients are reduced by hand, wrongly if asked for: then the replicas diverge."""

import argparse

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WRONG = ("nothing", "no-broadcast", "forgotten", "stale")


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Net(Slow(args, rank))
    x = torch.randn(32 * args.steps, 256)
    loader = DataLoader(TensorDataset(x, x[:, :1]), 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    parameters = list(model.parameters())
    if args.wrong != "no-broadcast":
        for parameter in parameters:
            dist.broadcast(parameter.data, src=0)
    reduced = parameters[:-1] if args.wrong == "forgotten" else parameters
    for step, (inputs, targets) in enumerate(loader):
        if args.wrong == "stale" and rank == args.rank and step == args.at:
            with torch.no_grad():
                parameters[0].mul_(0.5)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if step % args.every == 0:
            for parameter in reduced:
                dist.all_reduce(parameter.grad)
                assert parameter.grad is not None
                parameter.grad /= world
        optimizer.step()


def main() -> None:
    known = parser(steps=90)
    known.add_argument("--wrong", choices=WRONG, default="nothing")
    known.add_argument("--at", type=int, default=10, help="step at which one rank is changed")
    known.add_argument("--every", type=int, default=1, help="steps between two reductions")
    args = known.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
