"""DistributedDataParallel on tensors made in the loop: no DataLoader."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, slow: Slow) -> None:
        super().__init__()
        self.slow = slow
        self.first = nn.Sequential(nn.Linear(256, 768), nn.ReLU())
        self.last = nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.slow.in_backward(self.first(x))
        self.slow.here("forward")
        return torch.as_tensor(self.last(hidden))


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)

    for step in range(1, args.steps + 1):
        slow.turn()
        slow.here("input")
        x = torch.randn(64, 256)
        loss = nn.functional.mse_loss(model(x), x[:, :1] * 2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
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
