"""A small `Trainer` class that owns the loop, with callbacks and a loader that draws samples
without end, restarted whenever it ends."""

import argparse
from collections import defaultdict
from collections.abc import Callable

import torch
from _distributed import end, start
from _gpt import LENGTH, Gpt, make_tokens
from _planted import Planted, parser
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, RandomSampler

Pair = tuple[torch.Tensor, torch.Tensor]


class Sequences(Dataset[Pair]):
    def __init__(self) -> None:
        self.tokens = make_tokens(20_000)

    def __len__(self) -> int:
        return len(self.tokens) - LENGTH

    def __getitem__(self, index: int) -> Pair:
        chunk = self.tokens[index : index + LENGTH + 1]
        return chunk[:-1], chunk[1:]


class Trainer:
    def __init__(self, model: nn.Module, data: Dataset[Pair], planted: Planted, most: int) -> None:
        self.model = model
        self.data = data
        self.planted = planted
        self.most = most
        self.callbacks: dict[str, list[Callable[[Trainer], None]]] = defaultdict(list)
        self.turns = 0
        self.loss = torch.tensor(0.0)

    def add_callback(self, event: str, callback: Callable[["Trainer"], None]) -> None:
        self.callbacks[event].append(callback)

    def trigger(self, event: str) -> None:
        for callback in self.callbacks[event]:
            callback(self)

    def run(self) -> None:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        sampler = RandomSampler(self.data, replacement=True, num_samples=1_000_000)  # type: ignore[arg-type]  # has a length
        loader = DataLoader(self.data, 16, sampler=sampler)
        self.model.train()
        batches = iter(loader)
        while self.turns < self.most:
            self.planted.turn()
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(loader)
                x, y = next(batches)
            self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            self.turns += 1
            self.trigger("batch end")


def train(args: argparse.Namespace, rank: int) -> None:
    planted = Planted(args, rank)
    torch.manual_seed(rank)
    trainer = Trainer(DistributedDataParallel(Gpt(planted)), Sequences(), planted, args.steps)

    def report(trainer: Trainer) -> None:
        planted.here("callback")
        planted.log(trainer.loss.item())

    trainer.add_callback("batch end", report)
    trainer.run()
    planted.finish()


if __name__ == "__main__":
    options = parser(steps=40, place="callback").parse_args()
    train(options, start()[0])
    end()
