"""The data as PyTorch reads it."""

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset

from mgpu_trainers import raw
from mgpu_trainers.models import CONTEXT

Sample = tuple[torch.Tensor, torch.Tensor]

VALIDATION_WINDOWS = raw.VALIDATION_WINDOWS


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


def text() -> Data:
    array, classes = raw.characters()
    characters = torch.from_numpy(array)
    cut = len(characters) - VALIDATION_WINDOWS * CONTEXT - 1
    return Data(Text(characters[:cut]), Text(characters[cut:]), classes)


def digits() -> Data:
    images, labels = map(torch.from_numpy, raw.digits())
    images = images[:, None]
    return Data(
        Images(images[: raw.TRAINING_IMAGES], labels[: raw.TRAINING_IMAGES]),
        Images(images[raw.TRAINING_IMAGES :], labels[raw.TRAINING_IMAGES :]),
        classes=10,
    )


def load(model: str) -> Data:
    """The data for the model of that name; raises KeyError for a name that is none."""
    return {"gpt-nano": text, "cnn-nano": digits}[model]()
