"""An evolution strategy with torch, which marks its phases and steps itself: there is no module,
loader, gradient or optimizer, only an all-reduce."""

import argparse

import torch
import torch.distributed as dist
from _slow import Slow, parser

import mgpu_doctor


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    slow = Slow(args, rank)
    own = torch.Generator().manual_seed(rank)
    truth, weights = torch.ones(512, 256), torch.zeros(512, 256)
    for _ in range(args.steps):
        slow.turn()
        with mgpu_doctor.phase("input"):
            slow.here("input")
            batch = torch.randn(64, 512, generator=own)
        with mgpu_doctor.phase("forward"):
            slow.here("forward")
            noise = torch.randn(weights.shape, generator=own)
            loss = ((batch @ (weights + 0.1 * noise - truth)) ** 2).mean()
            update = loss * noise
        dist.all_reduce(update)
        with mgpu_doctor.phase("optimizer"):
            slow.here("optimizer")
            weights -= 1e-5 * update / world
        mgpu_doctor.step()
    print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
