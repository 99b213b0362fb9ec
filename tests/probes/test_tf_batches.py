"""Batches of TensorFlow: how many samples they hold is worked out once for each shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mgpu_probes.inprocess.frameworks.tensorflow import dataset_iterators


class Tensor:
    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def _shape_tuple(self) -> tuple[int, ...]:
        return self.shape


def per_replica(*tensors: Tensor) -> Any:
    return SimpleNamespace(values=tensors)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that were looked through."""
    seen: list[Any] = []

    def size_of(batch: Any) -> tuple[int, int]:
        seen.append(batch)
        return len(seen), 0

    monkeypatch.setattr(dataset_iterators, "batch_size", size_of)
    monkeypatch.setattr(dataset_iterators, "_sizes", {})
    return seen


@pytest.mark.parametrize("batch", [(Tensor(4, 8), Tensor(4)), (per_replica(Tensor(2), Tensor(2)),)])
def test_a_shape_is_looked_at_once(asked: list[Any], batch: Any) -> None:
    sizes = [dataset_iterators._cached_batch_size(7, batch) for _ in range(5)]
    assert sizes == [(1, 0)] * 5
    assert len(asked) == 1


def test_other_shapes_and_other_data_sets_are_others(asked: list[Any]) -> None:
    whole, rest = (Tensor(4, 8), Tensor(4)), (Tensor(3, 8), Tensor(3))
    parted = (per_replica(Tensor(4, 8), Tensor(4)),)
    told = [
        dataset_iterators._cached_batch_size(*one)
        for one in ((7, whole), (7, rest), (8, whole), (7, parted))
    ]
    assert len(set(told)) == 4
    assert dataset_iterators._cached_batch_size(7, whole) == told[0]
    assert len(asked) == 4


@pytest.mark.parametrize(
    "batch",
    [
        [Tensor(4)],
        {"x": Tensor(4)},
        (Tensor(4), {"y": Tensor(4)}),
        (SimpleNamespace(values=Tensor(4)),),
        (per_replica(Tensor(4), 3),),  # type: ignore[arg-type]
    ],
)
def test_batches_of_other_kinds_are_always_looked_through(asked: list[Any], batch: Any) -> None:
    assert [dataset_iterators._cached_batch_size(7, batch) for _ in range(3)] == [
        (1, 0),
        (2, 0),
        (3, 0),
    ]
    assert asked == [batch] * 3


def test_what_is_kept_is_bounded(asked: list[Any]) -> None:
    for length in range(2000):
        dataset_iterators._cached_batch_size(7, (Tensor(length),))
    assert len(dataset_iterators._sizes) <= 256
    assert len(asked) == 2000
