"""Two models of the size that people train on GPUs, for `mgpu-doctor plan` and for GPUs."""

import torch
from torch import nn

from mgpu_trainers.models import TransformerBlock

CONTEXT = 1024
"""Tokens that GPT-2 sees at once."""
VOCABULARY = 50257
"""Tokens that GPT-2 knows."""
CLASSES = 1000
"""Of ImageNet."""

_GROWTH = 4
"""A bottleneck's channels out, as multiples of those inside."""


class Gpt2Small(nn.Module):
    """Batch × tokens in, batch × tokens × vocabulary scores out; 124 million parameters.

    Radford et al. 2019, without dropout; the first and the last layer share their weights.
    """

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x) + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.head(self.norm(x)))


class Bottleneck(nn.Module):
    def __init__(self, before: int, inside: int, stride: int) -> None:
        super().__init__()
        after = _GROWTH * inside
        self.narrow = _convolution(before, inside, 1)
        self.wide = _convolution(inside, inside, 3, stride)
        self.out = _convolution(inside, after, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = _convolution(before, after, 1, stride)

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
        stages, before = [], width
        for number, depth in enumerate(depths):
            inside = width * 2**number
            blocks = []
            for place in range(depth):
                stride = 2 if number and not place else 1
                blocks.append(Bottleneck(before, inside, stride))
                before = _GROWTH * inside
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.begin(x)
        for stage in self.stages:
            x = stage(x)
        return torch.as_tensor(self.head(self.pool(x).flatten(1)))


def _convolution(before: int, after: int, size: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)
    )
