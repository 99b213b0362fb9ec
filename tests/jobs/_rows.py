"""Random data for scripts that leave their loop to a framework."""

import argparse
from typing import Any

import torch
from _slow import Slow, parser
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

BATCH, WIDTH, HELD_OUT = 64, 256, 320


def options() -> argparse.ArgumentParser:
    told = parser()
    told.add_argument("--accumulate", type=int, default=1, help="batches a turn")
    told.add_argument("--validate", action="store_true")
    return told


def rows(args: argparse.Namespace, world: int) -> tuple[Dataset[Any], Dataset[Any]]:
    """For training, as much as the ranks need, and for validation."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH * args.accumulate * args.steps * world + HELD_OUT, WIDTH, generator=made)
    data = TensorDataset(x[HELD_OUT:], x[HELD_OUT:, :1] * 2)
    return data, TensorDataset(x[:HELD_OUT], x[:HELD_OUT, :1] * 2)


def loader(data: Dataset[Any], slow: Slow) -> DataLoader[Any]:
    def collate(samples: list[Any]) -> list[torch.Tensor]:
        slow.here("input")
        return list(default_collate(samples))

    return DataLoader(data, BATCH, shuffle=True, collate_fn=collate)
