"""Tensor parallel: each block's weights are divided over the ranks, which see the same batch."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

BLOCKS, ROWS, WIDTH = 2, 64, 256


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
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world} starts", file=sys.stderr)
    torch.manual_seed(0)
    slow = Slow(args, rank)
    model = Net(slow)
    divided(model, init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    slow.in_optimizer(optimizer)

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
