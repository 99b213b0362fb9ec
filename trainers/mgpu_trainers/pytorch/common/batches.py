"""A rank's share of the data, in batches."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, default_collate

from mgpu_trainers import data, faults
from mgpu_trainers.pytorch.common.place import Place


class Kept:
    """A data set whose samples stay in memory once they were made; each of the loader's workers
    keeps those that it made."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.samples = dict[int, Any]()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        new = [index for index in indices if index not in self.samples]
        if new:
            self.samples |= zip(new, self._made(new), strict=True)
        return [self.samples[index] for index in indices]

    def _made(self, indices: Sequence[int]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):  # it makes whole batches
            return list(zip(*self.dataset.__getitems__(indices), strict=True))
        return [self.dataset[index] for index in indices]


def endless(
    source: data.Data,
    place: Place,
    share: tuple[int, int],
    planted: faults.Planted,
    *,
    size: int,
    loading: Namespace,
    seed: int,
    taken: int,
) -> Iterator[Any]:
    """One epoch after the other, each in an order of its own.

    `share`: which part of the data, of how many; `taken`: batches to leave out;
    `loading`: the options `workers`, `prefetch`, `pin` and `cache`.
    """
    dataset, collate = planted.fetch(source.training, default_collate)
    if loading.cache == "on":
        dataset, collate = Kept(dataset), default_collate
    part, parts = share
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, parts, part, seed=seed, drop_last=True
    )
    loader = DataLoader(
        dataset,
        planted.batch(size),
        sampler=sampler,
        num_workers=loading.workers,
        prefetch_factor=loading.prefetch if loading.workers else None,
        persistent_workers=loading.workers > 0,
        collate_fn=collate,
        pin_memory=loading.pin == "on" and place.device.type == "cuda",
        drop_last=True,
    )
    if not len(loader):
        sys.exit(f"{len(sampler)} samples of a rank are too few for a batch of {loader.batch_size}")
    epoch, skipped = divmod(taken, len(loader)) if taken else (0, 0)
    while True:
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None) if skipped else loader
        epoch, skipped = epoch + 1, 0
