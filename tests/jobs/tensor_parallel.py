"""Tensor parallelism: each block's weights are divided over the ranks, which get the same batch."""

import argparse

import torch
import torch.distributed as dist
from _loop import WIDTH, loop, main, start
from _slow import Slow
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

BLOCKS = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.as_tensor(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.slow = slow
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 0:
                x = self.slow.in_backward(x)
                self.slow.here("forward")
        return torch.as_tensor(self.head(x))


def divided(model: Net, mesh: DeviceMesh) -> None:
    """Divides the blocks over the ranks of `mesh`."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def train(args: argparse.Namespace) -> None:
    slow = start(args)
    model = Net(slow)
    divided(model, init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    loop(args.steps, slow, model, optimizer)


if __name__ == "__main__":
    main(train)
