"""Lines that a log repeats with other numbers, such as a loss that is not a number at every step.

Once many lines of a shape have matched the same signatures, further ones are only counted: of
each, only the number that labels its rank is read. A rank that was not seen before is searched as
usual. Measured (benchmarks/logs.py): five times as fast as searching each line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LEAST_LOOKS = 1000
"""Lines of a shape that must have matched the same. A choice: fewer could be a coincidence of their
numbers."""
MOST_SHAPES = 1000
LABEL_WIDTH = 64
"""Bytes at the start of a line among which the number of its rank must be."""
_NUMBERS = re.compile(rb"\d+")

T = TypeVar("T")


@dataclass(slots=True)
class _Shape(Generic[T]):
    outcome: tuple[int, ...]
    """The numbers of the signatures that its lines match."""
    places: frozenset[int] | None
    """Which of a line's numbers may be the rank's label; None: its lines have no label."""
    looks: int = 0
    of_label: dict[tuple[bytes, ...], tuple[T, ...]] = field(default_factory=dict)


class RepeatedLines(Generic[T]):
    """Remembers what lines matched, by shape and rank. T: what a match is counted with."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape[T] | None] = {}

    def find(self, shape: bytes, piece: bytes) -> tuple[T, ...] | None:
        """What the line matches; None: it must be searched."""
        known = self._shapes.get(shape)
        if known is None or known.looks < LEAST_LOOKS:
            return None
        return known.of_label.get(_label(known.places, piece))

    def learn(
        self,
        shape: bytes,
        piece: bytes,
        ranks: tuple[int | None, int | None],
        matches: Mapping[int, T],
    ) -> None:
        """Remembers what a search of the line found. `ranks`: the rank and local rank that
        label it; `matches`: the signatures' numbers, equal for all ranks, and their counters."""
        label = next((rank for rank in ranks if rank is not None), None)
        known, outcome = self._shapes.get(shape), tuple(matches)
        if known is None:
            if not matches or shape in self._shapes or len(self._shapes) >= MOST_SHAPES:
                return
            known = _Shape(outcome, None if label is None else _places(label, piece))
            self._shapes[shape] = known
        is_same = outcome == known.outcome and (label is None) == (known.places is None)
        is_same = is_same and None in ranks  # one number is read of a line
        if is_same and label is not None and known.places is not None:
            places = known.places & _places(label, piece)
            if places != known.places:
                known.places = places
                known.of_label.clear()
            is_same = bool(places)
        if not is_same:
            self._shapes[shape] = None  # its numbers decide: each line must be searched
            return
        known.looks += 1
        known.of_label[_label(known.places, piece)] = tuple(matches.values())


def _places(label: int, piece: bytes) -> frozenset[int]:
    numbers = _NUMBERS.findall(piece, 0, LABEL_WIDTH)
    return frozenset(at for at, number in enumerate(numbers) if int(number) == label)


def _label(places: frozenset[int] | None, piece: bytes) -> tuple[bytes, ...]:
    if not places:
        return ()
    numbers = _NUMBERS.findall(piece, 0, LABEL_WIDTH)
    return tuple([number for at, number in enumerate(numbers) if at in places])
