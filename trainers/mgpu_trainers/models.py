"""Two small models that train in seconds on a CPU and are shaped like the big ones.

Both keep their layers in `blocks`, so that a strategy or a fault can find the middle of a model,
and compute as well without some of them: a stage of a pipeline has others left out.
"""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from mgpu_trainers import raw
from mgpu_trainers.options import BLOCKS, HEADS

CONTEXT = raw.CONTEXT


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).flatten(2)))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return torch.as_tensor(x + self.mlp(self.mlp_norm(x)))


class GptNano(nn.Module):
    """A character model: batch × CONTEXT indices in, batch × classes × CONTEXT scores out."""

    begin = ("characters", "positions")
    end = ("norm", "head")
    characters: nn.Embedding | None
    positions: nn.Parameter | None
    norm: nn.LayerNorm | None
    head: nn.Linear | None

    def __init__(self, classes: int, width: int = 128) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleDict(
            {
                str(number): TransformerBlock(width, HEADS["gpt-nano"])
                for number in range(BLOCKS["gpt-nano"])
            }
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.characters is not None:
            x = self.characters(x) + self.positions
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x)).transpose(1, 2)
        return x


class CnnNano(nn.Module):
    """A digit reader: batch × 1 × 8 × 8 images in, batch × classes scores out."""

    begin = ()
    end = ("head",)
    head: nn.Linear | None

    def __init__(self, classes: int, channels: int = 32) -> None:
        super().__init__()
        widths = [1, channels, 2 * channels, 4 * channels]
        self.blocks = nn.ModuleDict(
            {
                str(number): nn.Sequential(
                    nn.Conv2d(before, after, 3, padding=1, stride=1 if before == 1 else 2),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                )
                for number, (before, after) in enumerate(pairwise(widths))
            }
        )
        self.head = nn.Linear(widths[-1] * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else torch.as_tensor(self.head(x.flatten(1)))


def stage(model: nn.Module, number: int, stages: int, heavy: int | None = None) -> nn.Module:
    """A copy of one of so many parts of `model`, the first being 0; weights keep their names.
    `heavy`: the part that has all blocks but one of each other, where they are not even."""
    assert isinstance(model, GptNano | CnnNano)
    part = copy.deepcopy(model)
    for owner, name in zip(_owners(len(model.blocks), stages, heavy), model.blocks, strict=True):
        if owner != number:
            del part.blocks[name]
    for name in (*(part.begin if number else ()), *(part.end if number < stages - 1 else ())):
        setattr(part, name, None)
    return part


def _owners(blocks: int, stages: int, heavy: int | None) -> list[int]:
    """The part that each block belongs to."""
    if heavy is None:
        return [place * stages // blocks for place in range(blocks)]
    spare = max(0, blocks - stages)
    return sorted([*range(stages), *[heavy] * spare][:blocks])


def build(name: str, classes: int) -> nn.Module:
    """The model of that name; raises KeyError for a name that is none."""
    kinds: dict[str, type[GptNano] | type[CnnNano]] = {"gpt-nano": GptNano, "cnn-nano": CnnNano}
    return kinds[name](classes)
