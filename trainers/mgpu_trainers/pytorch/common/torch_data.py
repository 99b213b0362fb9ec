"""The data as PyTorch datasets, and a rank's share of it in batches."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from mgpu_trainers import datasets
from mgpu_trainers.datasets import CONTEXT
from mgpu_trainers.planting import Planted
from mgpu_trainers.pytorch.common.process_group import Place

Sample = tuple[torch.Tensor, torch.Tensor]


class Text(Dataset[Sample]):
    """Windows of CONTEXT characters, each with the same window one character further."""

    def __init__(self, characters: torch.Tensor) -> None:
        self.characters = characters

    def __len__(self) -> int:
        return (len(self.characters) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Sample:
        start = index * CONTEXT
        window = self.characters[start : start + CONTEXT + 1].long()
        return window[:-1], window[1:]


class Images(Dataset[Sample]):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        return self.images[index], self.labels[index]


@dataclass(frozen=True)
class Data:
    training: Text | Images
    validation: Text | Images
    classes: int


def load_text() -> Data:
    array, classes = datasets.load_characters()
    characters = torch.from_numpy(array)
    cut = len(characters) - datasets.VALIDATION_WINDOWS * CONTEXT - 1
    return Data(Text(characters[:cut]), Text(characters[cut:]), classes)


def load_digits() -> Data:
    images, labels = map(torch.from_numpy, datasets.load_digits())
    images = images[:, None]
    return Data(
        Images(images[: datasets.TRAINING_IMAGES], labels[: datasets.TRAINING_IMAGES]),
        Images(images[datasets.TRAINING_IMAGES :], labels[datasets.TRAINING_IMAGES :]),
        classes=10,
    )


def load_data(model: str) -> Data:
    """The data for the model of that name; raises KeyError for an unknown name."""
    return {"gpt-nano": load_text, "cnn-nano": load_digits}[model]()


class CachedDataset:
    """Keeps samples in memory once they were made; each loader process keeps its own."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.samples = dict[int, Any]()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        new = [index for index in indices if index not in self.samples]
        if new:
            self.samples |= zip(new, self._make(new), strict=True)
        return [self.samples[index] for index in indices]

    def _make(self, indices: Sequence[int]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):  # it makes whole batches
            return list(zip(*self.dataset.__getitems__(indices), strict=True))
        return [self.dataset[index] for index in indices]


def endless_batches(
    source: Data,
    place: Place,
    share: tuple[int, int],
    planted: Planted,
    *,
    size: int,
    loading: Namespace,
    seed: int,
    batches_taken: int,
) -> Iterator[Any]:
    """The rank's batches, one epoch after the other, each in an order of its own.

    `share`: which part of the data, and of how many; `taken`: batches to leave out;
    `loading`: the options `workers`, `prefetch`, `pin` and `cache`.
    """
    dataset, collate = planted.fetch(source.training, default_collate)
    if loading.cache == "on":
        dataset, collate = CachedDataset(dataset), default_collate
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
    epoch, skipped = divmod(batches_taken, len(loader)) if batches_taken else (0, 0)
    while True:
        sampler.set_epoch(epoch)
        yield from islice(loader, skipped, None) if skipped else loader
        epoch, skipped = epoch + 1, 0
