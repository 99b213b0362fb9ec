"""Fully sharded data parallel (FSDP2): blocks are gathered one by one, gradients scattered."""

import argparse

import torch
import torch.distributed as dist
from _loop import WIDTH, loop, main, start
from _slow import Slow
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BLOCKS = 3


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
    slow = start(args)
    model = Net(slow)
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    loop(args.steps, slow, model, optimizer)


if __name__ == "__main__":
    main(train)
