"""Sorts the stamps that graphs sent into turns of the training loop. Uses no clock and no
TensorFlow.

The stamps of a call of a `tf.function` are known when it returns. They come as arrivals, one for
each execution of a graph with stamps. A graph that ran several times in one call (Keras'
`steps_per_execution`, gradient accumulation) gives as many turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

FETCH_BEGINS, INPUT, LOSS, GRADIENTS, REDUCE_BEGINS, REDUCE_ENDS, UPDATE, SAMPLES, TOKENS, VALUE = (
    range(10)
)
"""Kinds of stamps. Moments: a fetch begins, the batch is there, the loss is computed, the gradients
are computed, a reduction over replicas begins, it ends. UPDATE has no moment: it says that the
graph holds an optimizer's update. The last three are numbers: samples, tokens, value of the
loss."""
NUMBERS = (SAMPLES, TOKENS, VALUE)
_LATEST = 1e12
"""Seconds since the epoch; a larger stamp is not a time and is ignored."""


class Stamp(NamedTuple):
    """One value that a graph sends."""

    kind: int
    nth: int
    """Its index among the stamps of this kind and replica in its graph."""
    replica: int
    serial: int
    """The order in which stamps were traced, over all graphs."""


Layout = tuple[Stamp, ...]
"""The stamps of one graph, in the order of their values. An `UPDATE`, which has no value, is
last."""
Layouts = tuple[Layout, ...]
Arrival = tuple[Layouts, Sequence[float]]
"""One vector of values, with the layouts of the graph that sent it and of the functions it
calls."""
_PLANS_KEPT = _LONGEST_KEPT = 64


class Plan(NamedTuple):
    """The indexes of one turn's values among all values that a call sent."""

    moments: tuple[tuple[int, tuple[int, ...]], ...]
    """Kinds, in the order of tracing, each with the index of its value for every replica."""
    updates: bool
    samples: tuple[int, ...]
    tokens: tuple[int, ...]
    losses: tuple[int, ...]
    gradients: tuple[tuple[int, int], ...]
    """Replicas, each with the index of its last GRADIENTS stamp."""


class Turn(NamedTuple):
    """One turn of the loop. Its moments are in the order of tracing and never go back in time."""

    moments: tuple[tuple[int, int], ...]
    """Kind and monotonic ns."""
    updates: bool
    samples: int
    tokens: int
    loss: float
    """Summed over replicas; NaN: unknown; infinite: the loss was NaN or infinite."""

    @property
    def trains(self) -> bool:
        """Whether gradients were computed."""
        return any(kind == GRADIENTS for kind, _ in self.moments)


_plans: dict[tuple[int, ...], tuple[list[Plan], list[Layouts]]] = {}
"""A cache by the ids of the layouts, which are kept so that no id is reused: a training loop sends
the same layouts in every step."""


def plan_turns(arrivals: Sequence[Arrival]) -> list[Plan]:
    """The plan of each turn of a call, from its arrivals."""
    key = tuple([id(layouts) for layouts, _ in arrivals])
    cached = _plans.get(key)
    if cached is not None:
        return cached[0]
    sent = [layouts for layouts, _ in arrivals]
    planned = _plan_arrivals(sent)
    if len(key) <= _LONGEST_KEPT:
        if len(_plans) >= _PLANS_KEPT:
            _plans.clear()
        _plans[key] = planned, sent
    return planned


def _plan_arrivals(sent: Sequence[Layouts]) -> list[Plan]:
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


def time_turns(
    planned: Sequence[Plan], values: Sequence[float], began: int, ended: int, offset: int
) -> list[Turn]:
    """The turns of a call that lasted from `began` to `ended` (monotonic ns) and sent `values`.
    `offset`: ns to add to a stamp of the wall clock for the monotonic clock."""
    timed = []
    latest = began
    for plan in planned:
        moments = []
        for kind, places in plan.moments:
            # The last replica counts: until then the process is busy.
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
    """Joins the turns of a call without an update: passes over the same batch are one turn. A new
    turn begins only where a batch was fetched."""
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
