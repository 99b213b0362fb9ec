"""In the middle of every ten turns a validation pass under no_grad, with a loader of its own."""

import argparse
import sys

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate


def validate(model: nn.Module, loader: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(inputs), targets) for inputs, targets in loader]
    model.train()
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)

    def collate(samples: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        slow.here("input")
        return list(default_collate(samples))

    x = torch.randn(64 * (args.steps + 5), 256)
    data, held_out = (
        TensorDataset(x[320:], x[320:, :1] * 2),
        TensorDataset(x[:320], x[:320, :1] * 2),
    )
    loader = DataLoader(data, 64, collate_fn=collate)
    validation = DataLoader(held_out, 64)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)

    for step, (inputs, targets) in enumerate(loader, 1):
        slow.turn()
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slow.here("between")
        if step % 10 == 5:
            validation_loss = validate(model, validation)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} validation {validation_loss:.4f}")
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
