"""A small transformer for sequences of tokens, and tokens with a pattern that it can learn."""

import torch
from _planted import Planted
from torch import nn
from torch.nn import functional

TOKENS, LENGTH, WIDTH, HEAD, BLOCKS = 64, 32, 96, 24, 3


class Block(nn.Module):
    """Attention and a perceptron. The heads come first in `qkv`, so that they can be divided."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        many, length, _ = x.shape
        heads = self.qkv(self.before(x)).view(many, length, -1, 3, HEAD)
        query, key, value = heads.permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(many, length, -1))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.between(x))))
        return result


class Gpt(nn.Module):
    """Predicts the next token; `forward` gives logits, or the loss if it gets targets."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.planted = planted
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 0:
                self.planted.here("forward")
        logits: torch.Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_tokens(count: int, seed: int = 0) -> torch.Tensor:
    """Noise around a walk through the vocabulary."""
    made = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 4, (count,), generator=made)
    return (torch.arange(count) * 3 + noise) % TOKENS
