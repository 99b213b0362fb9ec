"""The loss of one rank becomes NaN or infinite in one step, and then the weights of all ranks."""

import argparse
import math
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(Net(Slow(args, rank)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        inputs = torch.randn(16, 256)
        if step == args.at and args.rank in (rank, -1):
            inputs[0, 0] = float(args.value)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
        if args.then != "on" and not math.isfinite(loss.item()):
            if args.then == "raise":
                raise ValueError(f"loss is {loss.item()} at step {step}")
            print(f"Loss is {loss.item()}, stopping training", flush=True)
            sys.exit(1)
        loss.backward()
        optimizer.step()


def main() -> None:
    known = parser()
    known.add_argument("--at", type=int, default=20, help="in this step")
    known.add_argument("--value", choices=("nan", "inf"), default="nan")
    known.add_argument("--then", choices=("on", "raise", "exit"), default="on")
    args = known.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
