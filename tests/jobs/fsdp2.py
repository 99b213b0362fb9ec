"""Fully sharded data parallel (FSDP2): blocks are gathered one by one, gradients scattered."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BLOCKS, ROWS, WIDTH = 3, 64, 256


class Net(nn.Module):
    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.slow = slow
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 0:
                x = self.slow.in_backward(x)
                self.slow.here("forward")
        return torch.as_tensor(self.head(x))


def train(args: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.manual_seed(0)
    slow = Slow(args, rank)
    model = Net(slow)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)
    torch.manual_seed(rank)

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(ROWS, WIDTH)
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
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
