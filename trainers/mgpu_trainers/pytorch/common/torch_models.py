"""The models in PyTorch: two that train in seconds on a CPU, and two of the size people train.

The small ones keep their layers in `blocks`, so that a strategy or a fault can find the middle of a
model, and compute as well without some of them: a stage of a pipeline has others left out. The
large ones are for `mgpu-doctor plan` and for GPUs.
"""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from mgpu_trainers.datasets import CONTEXT
from mgpu_trainers.options import BLOCKS, HEADS


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
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
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
                    nn.Conv2d(inputs, outputs, 3, padding=1, stride=1 if inputs == 1 else 2),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                )
                for number, (inputs, outputs) in enumerate(pairwise(widths))
            }
        )
        self.head = nn.Linear(widths[-1] * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else torch.as_tensor(self.head(x.flatten(1)))


def stage(model: nn.Module, number: int, stages: int, heavy: int | None = None) -> nn.Module:
    """A copy of one part of `model`, counted from 0; weights keep their names.
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
    """The model of that name; raises KeyError for an unknown name."""
    kinds: dict[str, type[GptNano] | type[CnnNano]] = {"gpt-nano": GptNano, "cnn-nano": CnnNano}
    return kinds[name](classes)


GPT2_CONTEXT = 1024
"""Tokens that GPT-2 sees at once."""

GPT2_VOCABULARY = 50257
"""Tokens that GPT-2 knows."""

IMAGENET_CLASSES = 1000
"""Classes of ImageNet."""

_GROWTH = 4
"""A bottleneck's channels out, as multiples of those inside."""


class Gpt2Small(nn.Module):
    """Batch × tokens in, batch × tokens × vocabulary scores out; 124 million parameters.

    Radford et al. 2019, without dropout; the first and the last layer share their weights.
    """

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(GPT2_VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(GPT2_CONTEXT, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, GPT2_VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.norm(x)))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, inside: int, stride: int) -> None:
        super().__init__()
        outputs = _GROWTH * inside
        self.narrow = _convolution(inputs, inside, 1)
        self.wide = _convolution(inside, inside, 3, stride)
        self.out = _convolution(inside, outputs, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = _convolution(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.relu(self.wide(self.relu(self.narrow(x))))
        return torch.as_tensor(self.relu(self.out(inside) + self.shortcut(x)))


class ResNet50(nn.Module):
    """Batch × 3 × 224 × 224 images in, batch × CLASSES scores out; 25.6 million parameters.

    He et al. 2015, with the stride in the 3 × 3 convolution as everybody has it since.
    """

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.begin = nn.Sequential(
            _convolution(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        stages, inputs = [], width
        for number, depth in enumerate(depths):
            inside = width * 2**number
            blocks = []
            for place in range(depth):
                stride = 2 if number and not place else 1
                blocks.append(Bottleneck(inputs, inside, stride))
                inputs = _GROWTH * inside
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inputs, IMAGENET_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for stage in self.stages:
            x = stage(x)
        return torch.as_tensor(self.head(self.pool(x).flatten(1)))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )
