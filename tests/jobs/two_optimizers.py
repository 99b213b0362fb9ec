"""A small GAN: two models, two optimizers, two backwards and two steps in each turn."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as judge
from torch.nn.parallel import DistributedDataParallel


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank, parts=2)
    forger = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256))
    )
    critic = DistributedDataParallel(Net(slow))
    forging = torch.optim.Adam(forger.parameters(), lr=2e-4)
    judging = torch.optim.Adam(critic.parameters(), lr=2e-4)
    slow.in_optimizer(forging)
    answers = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        real = torch.randn(32, 256).abs()
        noise = torch.randn(32, 64)
        slow.here("input")

        forged = forger(noise)
        judging.zero_grad()
        critic_loss = judge(critic(torch.cat([real, forged.detach()])), answers)
        critic_loss.backward()
        judging.step()

        forging.zero_grad()
        forger_loss = judge(critic(forged), torch.ones(32, 1))
        forger_loss.backward()
        forging.step()
        slow.here("between")
        slow.here("between")
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {critic_loss.item():.4f} {forger_loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
