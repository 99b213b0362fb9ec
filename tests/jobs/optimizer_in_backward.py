"""Each parameter has its own optimizer, which steps inside backward: no step in the loop."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.manual_seed(0)
    slow = Slow(args, rank)
    model = Net(slow)
    optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {
        parameter: torch.optim.Adam([parameter], lr=1e-3) for parameter in model.parameters()
    }
    slow.in_optimizer(next(iter(optimizers.values())))

    def update(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)

    torch.manual_seed(100 + rank)
    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(64, 256)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 2)
        loss.backward()
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
