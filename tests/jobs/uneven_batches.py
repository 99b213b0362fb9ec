"""A small text model whose ranks have unequal batches, or sequences of unequal length."""

import argparse
from collections.abc import Iterator

import torch
import torch._dynamo  # before the process group, see _slow
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WORDS = 1000
BATCH = 8
LENGTH = 192
LENGTHS = (32, 480)

Sample = tuple[torch.Tensor, torch.Tensor]


class Sentences(IterableDataset[Sample]):
    """Batches of word numbers, all sentences of a batch of one length."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        # The ranks' lengths differ, but a run is like any other.
        self.random = torch.Generator().manual_seed(rank)
        self.lengths = LENGTHS if args.uneven == "lengths" else (LENGTH, LENGTH)
        self.batch = BATCH * 2 if args.uneven == "batch" and rank == args.rank else BATCH
        self.steps = args.steps

    def __iter__(self) -> Iterator[Sample]:
        for _ in range(self.steps):
            low, high = self.lengths
            length = int(torch.randint(low, high + 1, (1,), generator=self.random))
            words = torch.randint(WORDS, (self.batch, length), generator=self.random)
            yield words, words.roll(-1, dims=1)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(WORDS, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, WORDS)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sentences = Sentences(args, dist.get_rank())
    batches = sentences if args.no_loader else DataLoader(sentences, batch_size=None)
    for words, next_words in batches:
        optimizer.zero_grad()
        scores = model(words)
        nn.functional.cross_entropy(scores.flatten(0, 1), next_words.flatten()).backward()
        optimizer.step()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=80)
    options.add_argument("--uneven", choices=("none", "batch", "lengths"), default="none")
    options.add_argument("--rank", type=int, default=1, help="who has twice the batch")
    options.add_argument("--no-loader", action="store_true", help="nothing counts the words")
    args = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
