"""Fails half way in the first attempt; for `torchrun --max-restarts 1`.

A restart needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: otherwise the second attempt finds the
addresses of the first in the store (pytorch issue 135712).
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace) -> None:
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"rank {rank} starts, attempt {attempt}", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(1, args.steps + 1):
        slow.turn()
        x = torch.randn(64, 256)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if attempt == 0 and rank == args.rank and step == args.steps // 2:
            raise ConnectionError("the storage went away")
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
