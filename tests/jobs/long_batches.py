"""A text model whose batches are padded to their longest sentence: memory goes with the length."""

import argparse
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WORDS = 6000
BATCH = 8
LEAST, MEAN = 16, 40.0


class Sentences(IterableDataset[torch.Tensor]):
    """Lengths are exponential beyond the shortest, and the same in each run."""

    def __init__(self, steps: int) -> None:
        self.random = torch.Generator().manual_seed(7)
        self.steps = steps

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.steps):
            beyond = torch.empty(1).exponential_(1 / MEAN, generator=self.random)
            length = LEAST + int(beyond)
            yield torch.randint(WORDS, (BATCH, length), generator=self.random)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=240)
    args = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for words in DataLoader(Sentences(args.steps), batch_size=None):
        optimizer.zero_grad()
        scores = model(words)
        nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
