"""From the moments that a graph stamped to the marks of a turn. No clock, no TensorFlow.

What one call of a `tf.function` ran is told when it returns. Its stamps come in arrivals: one for
each execution of a graph that holds some. A graph that ran several times in a call (Keras'
`steps_per_execution`, an accumulation) gives as many turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

ASKS, INPUT, LOSS, GRADIENTS, REDUCES, REDUCED, UPDATE, SAMPLES, TOKENS, VALUE = range(10)
"""Kinds of stamps: moments at which a batch is asked for, the batch is there, the loss and the
gradients are computed, a reduction over replicas is asked for and is done; UPDATE stands for no
moment of its own: an optimizer follows. The last three are numbers."""
NUMBERS = (SAMPLES, TOKENS, VALUE)
_LATEST = 1e12
"""Seconds since the epoch beyond which a stamp is none."""


class Stamp(NamedTuple):
    """One value that a graph sends, as it was traced."""

    kind: int
    nth: int
    """Among those of this kind and replica in its graph."""
    replica: int
    serial: int
    """The order in which stamps were traced, over all graphs."""


Layout = tuple[Stamp, ...]


class Turn(NamedTuple):
    """What one turn's stamps say; moments in the order in which they were traced, none before the
    one before it."""

    moments: tuple[tuple[int, int], ...]
    """Kind and monotonic ns."""
    updates: bool
    samples: int
    tokens: int
    loss: float
    """Summed over replicas; NaN: unknown; infinite: it was no number."""

    @property
    def trains(self) -> bool:
        """Whether gradients were computed."""
        return any(kind == GRADIENTS for kind, _ in self.moments)


def turns(
    arrivals: Sequence[tuple[Layout, Sequence[float]]], began: int, ended: int, offset: int
) -> list[Turn]:
    """The turns of a call that lasted from `began` to `ended` (monotonic ns); `offset`: what is to
    be added to a stamp (seconds of the wall clock, in ns) to get there."""
    runs: dict[int, int] = {}
    gathered: list[list[tuple[Layout, Sequence[float]]]] = []
    for layout, values in arrivals:
        number = runs[id(layout)] = runs.get(id(layout), -1) + 1
        if number == len(gathered):
            gathered.append([])
        gathered[number].append((layout, values))
    told = []
    for each in gathered:
        turn = _turn(each, began, ended, offset)
        told.append(turn)
        began = turn.moments[-1][1] if turn.moments else began
    return told


def _turn(
    arrivals: Iterable[tuple[Layout, Sequence[float]]], began: int, ended: int, offset: int
) -> Turn:
    merged: dict[tuple[int, int, int], list[int]] = {}
    numbers: dict[int, float | None] = dict.fromkeys(NUMBERS)
    updates = False
    for layout, values in arrivals:
        updates |= any(stamp.kind == UPDATE for stamp in layout)
        for stamp, value in zip(layout, values, strict=False):
            if stamp.kind in NUMBERS:
                known = numbers[stamp.kind]
                numbers[stamp.kind] = value if known is None else known + value
                continue
            moment = round(value * 1e9) + offset if abs(value) < _LATEST else 0
            seen = merged.setdefault((id(layout), stamp.kind, stamp.nth), [stamp.serial, moment])
            # The last replica decides: until then the process still works.
            seen[0], seen[1] = min(seen[0], stamp.serial), max(seen[1], moment)
    moments = []
    latest = began
    for (_, kind, _), (_, moment) in sorted(merged.items(), key=lambda one: one[1][0]):
        latest = min(max(moment, latest), ended)
        moments.append((kind, latest))
    return Turn(
        tuple(moments),
        updates,
        _count(numbers[SAMPLES]),
        _count(numbers[TOKENS]),
        _loss(numbers[VALUE]),
    )


def _loss(value: float | None) -> float:
    if value is None:
        return nan
    return value if isfinite(value) else inf


def _count(value: float | None) -> int:
    return int(value) if value is not None and isfinite(value) and value > 0 else 0
