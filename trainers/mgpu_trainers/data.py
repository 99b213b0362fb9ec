"""Real data without a download: the interpreter's own reference text, and hand-written digits.

The digits are described, with authors and licence, in `digits/README.md`.
"""

import gzip
from dataclasses import dataclass
from importlib import resources

import numpy as np
import torch
from torch.utils.data import Dataset

from mgpu_trainers.models import CONTEXT

Sample = tuple[torch.Tensor, torch.Tensor]

VALIDATION_WINDOWS = 128
TRAINING_IMAGES = 1500


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
    """The language reference that Python's `help()` prints, as characters."""
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {character: index for index, character in enumerate(sorted(set(whole)))}
    characters = torch.tensor([alphabet[character] for character in whole], dtype=torch.int16)
    cut = len(characters) - VALIDATION_WINDOWS * CONTEXT - 1
    return Data(Text(characters[:cut]), Text(characters[cut:]), classes=len(alphabet))


def digits() -> Data:
    packed = (resources.files("mgpu_trainers") / "digits" / "digits.csv.gz").read_bytes()
    lines = gzip.decompress(packed).decode("ascii").splitlines()
    table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    images, labels = table[:, :64].reshape(-1, 1, 8, 8) / 16, table[:, 64].long()
    return Data(
        Images(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]),
        Images(images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:]),
        classes=10,
    )


def load(model: str) -> Data:
    """The data for the model of that name; raises KeyError for a name that is none."""
    return {"gpt-nano": text, "cnn-nano": digits}[model]()
