"""A trainer class with callbacks; forward and backward run in a closure inside the step."""

import argparse
import sys
from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
from _slow import Slow, parser
from no_loader import Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate

Batch = list[torch.Tensor]


class Callback:
    def on_batch_start(self, step: int) -> None: ...

    def on_batch_end(self, step: int, loss: float) -> None: ...


class Progress(Callback):
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_batch_end(self, step: int, loss: float) -> None:
        if self.rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


class SlowCallback(Callback):
    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    def on_batch_start(self, _step: int) -> None:
        self.slow.turn()

    def on_batch_end(self, _step: int, _loss: float) -> None:
        self.slow.here("between")


class Trainer:
    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks

    def fit(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Batch]
    ) -> None:
        for step, batch in enumerate(loader, 1):
            for callback in self.callbacks:
                callback.on_batch_start(step)
            loss = optimizer.step(partial(self.closure, model, optimizer, batch))
            for callback in self.callbacks:
                callback.on_batch_end(step, loss)

    def closure(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
        inputs, targets = batch
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        return loss.item()


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
    Trainer([SlowCallback(slow), Progress(rank)]).fit(model, optimizer, loader)
    if rank == 0:
        print(f"turns {slow.turns}")


def main() -> None:
    args = parser().parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
