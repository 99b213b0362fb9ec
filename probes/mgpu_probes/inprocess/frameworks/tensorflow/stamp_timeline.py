"""From the moments that a graph stamped to the marks of a turn. No clock, no TensorFlow.

What one call of a `tf.function` ran is known when it returns. Its stamps come in arrivals: one for
each execution of a graph that holds some. A graph that ran several times in a call (Keras'
`steps_per_execution`, an accumulation) gives as many turns.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""What one execution of a graph sends; a stamp of `UPDATE`, which has no value, is the last."""
Layouts = tuple[Layout, ...]
Arrival = tuple[Layouts, Sequence[float]]
"""What came at once, of one graph or of one and those that it calls: the values of all."""
_PLANS_KEPT = _LONGEST_KEPT = 64


class Plan(NamedTuple):
    """Where the values of one turn are found among all that a call sent."""

    moments: tuple[tuple[int, tuple[int, ...]], ...]
    """Kinds, as they were traced, and the places of their values: one for each replica."""
    updates: bool
    samples: tuple[int, ...]
    tokens: tuple[int, ...]
    losses: tuple[int, ...]
    gradients: tuple[tuple[int, int], ...]
    """Replicas, and the place of the last gradients of each."""


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


_plans: dict[tuple[int, ...], tuple[list[Plan], list[Layouts]]] = {}
"""By what arrived, which is kept with it: a training loop sends the same again and again."""


def plans(arrivals: Sequence[Arrival]) -> list[Plan]:
    """One for each turn of a call."""
    key = tuple([id(layouts) for layouts, _ in arrivals])
    cached = _plans.get(key)
    if cached is not None:
        return cached[0]
    sent = [layouts for layouts, _ in arrivals]
    planned = _planned(sent)
    if len(key) <= _LONGEST_KEPT:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        _plans[key] = planned, sent
    return planned


def _planned(sent: Sequence[Layouts]) -> list[Plan]:
    runs: dict[int, int] = {}
    gathered: list[list[tuple[int, Stamp, int]]] = []
    place = 0
    for layout in [layout_sent for layouts in sent for layout_sent in layouts]:
        number = runs[id(layout)] = runs.get(id(layout), -1) + 1
        if number == len(gathered):
            gathered.append([])
        for stamp in layout:
            gathered[number].append((id(layout), stamp, place))
            place += stamp.kind != UPDATE
    return [_plan(stamps) for stamps in gathered]


def _plan(stamps: Sequence[tuple[int, Stamp, int]]) -> Plan:
    merged: dict[tuple[int, int, int], list[int]] = {}
    gradients: dict[int, int] = {}
    for layout, stamp, place in sorted(stamps, key=lambda stamp: stamp[1].serial):
        if stamp.kind not in NUMBERS and stamp.kind != UPDATE:
            merged.setdefault((layout, stamp.kind, stamp.nth), []).append(place)
        if stamp.kind == GRADIENTS and stamp.replica >= 0:
            gradients[stamp.replica] = place

    def of(kind: int) -> tuple[int, ...]:
        return tuple(place for _, stamp, place in stamps if stamp.kind == kind)

    return Plan(
        tuple((kind, tuple(places)) for (_, kind, _), places in merged.items()),
        any(stamp.kind == UPDATE for _, stamp, _ in stamps),
        of(SAMPLES),
        of(TOKENS),
        of(VALUE),
        tuple(sorted(gradients.items())),
    )


def turns(
    planned: Sequence[Plan], values: Sequence[float], began: int, ended: int, offset: int
) -> list[Turn]:
    """The turns of a call that lasted from `began` to `ended` (monotonic ns) and sent `values`;
    `offset`: what is to be added to a stamp (seconds of the wall clock, in ns) to get there."""
    timed = []
    latest = began
    for plan in planned:
        moments = []
        for kind, places in plan.moments:
            # The last replica decides: until then the process still works.
            for place in places:
                value = values[place]
                if abs(value) < _LATEST:
                    latest = max(latest, min(int(value * 1e9) + offset, ended))
            moments.append((kind, latest))
        turn = Turn(
            tuple(moments),
            plan.updates,
            _count(_sum(values, plan.samples)),
            _count(_sum(values, plan.tokens)),
            _loss(_sum(values, plan.losses)),
        )
        timed.append(turn)
    return timed


def merge_turns(parts: Sequence[Turn]) -> list[Turn]:
    """Of a call that updates nothing: passes over what the call was given, or over one batch
    that it fetched, are one turn."""
    joined: list[Turn] = []
    for turn in parts:
        if not joined or any(kind == INPUT for kind, _ in turn.moments):
            joined.append(turn)
            continue
        last = joined[-1]
        joined[-1] = turn._replace(
            moments=last.moments + turn.moments,
            samples=last.samples + turn.samples,
            tokens=last.tokens + turn.tokens,
        )
    return joined


def _sum(values: Sequence[float], places: tuple[int, ...]) -> float | None:
    return sum([values[place] for place in places]) if places else None


def _loss(value: float | None) -> float:
    if value is None:
        return nan
    return value if isfinite(value) else inf


def _count(value: float | None) -> int:
    return int(value) if value is not None and isfinite(value) and value > 0 else 0
