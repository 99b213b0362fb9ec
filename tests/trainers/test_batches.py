"""What the options of loading make of a rank's loader."""

from argparse import Namespace
from typing import Any

import pytest
import torch
from mgpu_trainers import data
from mgpu_trainers.faults import Planted
from mgpu_trainers.pytorch.common import batches
from mgpu_trainers.pytorch.common.place import Place

NAMES = ("num_workers", "prefetch_factor", "pin_memory")


def loader(monkeypatch: pytest.MonkeyPatch, device: str, **given: Any) -> tuple[Any, ...]:
    made: list[tuple[Any, ...]] = []

    def record(*_: Any, **settings: Any) -> list[int]:
        made.append(tuple(settings[name] for name in NAMES))
        return [0]

    monkeypatch.setattr(batches, "DataLoader", record)
    loading = Namespace(**{"workers": 0, "prefetch": None, "pin": "on", **given})
    place = Place(0, 2, torch.device(device))
    nobody = Planted([], rank=0)
    next(
        batches.endless(
            data.digits(), place, (0, 2), nobody, size=4, loading=loading, seed=0, taken=0
        )
    )
    return made[0]


def test_loading_is_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader(monkeypatch, "cuda") == (0, None, True)
    assert loader(monkeypatch, "cuda", pin="off", workers=2, prefetch=5) == (2, 5, False)


def test_on_a_cpu_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loader(monkeypatch, "cpu", workers=1) == (1, None, False)
