"""The loader is asked for the next batch before the present one is used, as Accelerate does."""

import argparse
import sys
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate

Batch = list[torch.Tensor]


def one_ahead(loader: Iterable[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last one."""
    batches = iter(loader)
    present = next(batches)
    for following in batches:
        yield present, False
        present = following
    yield present, True


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    print(f"rank {rank} of {dist.get_world_size()} starts", file=sys.stderr)
    torch.manual_seed(rank)
    slow = Slow(args, rank)

    def collate(samples: list[tuple[torch.Tensor, ...]]) -> Batch:
        slow.here("input")
        return list(default_collate(samples))

    x = torch.randn(64 * args.steps, 256)
    loader = DataLoader(TensorDataset(x, x[:, :1] * 2), 64, collate_fn=collate)
    model = DistributedDataParallel(Net(slow))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    slow.in_optimizer(optimizer)

    for (inputs, targets), is_last in one_ahead(loader):
        slow.turn()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        slow.here("between")
        if rank == 0 and (slow.turns % 10 == 0 or is_last):
            print(f"step {slow.turns} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
