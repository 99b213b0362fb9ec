"""How well more ranks pay off: speed-up, efficiency, the best count, and a fitted scaling law.
Pure.

A step of N ranks takes own work + wait + communication, and each part has its own shape:

- own work: a/N if the ranks divide a given batch (strong scaling), a if each has a batch of its
  own (weak), plus b(N - 1) for what ranks take from each other (cores, memory bandwidth);
- wait for the slowest rank: c ln N, as the largest of N delays grows if their tail is exponential;
- communication: d(N - 1), the latency of a ring of N - 1 turns. If bandwidth is the limit, it
  grows less with N, and the law is pessimistic.

Each is fitted by least squares, none below 0. The margin is honest about extrapolation: how far
the law, fitted without the largest count, misses that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import log
from statistics import mean

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.comparing.compared_run import STEPS, Run
from mgpu_doctor.analysis.comparing.run_pairs import pair
from mgpu_doctor.analysis.comparing.step_time_noise import Interval

LEAST_COUNTS = 3
AHEAD = 2
"""Number of predicted rank counts, each twice the previous one."""

Shape = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds per step with `ranks` ranks."""

    ranks: int
    work: float
    wait: float
    communication: float

    @property
    def total(self) -> float:
        return self.work + self.wait + self.communication


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds a step: own + crowding (N - 1) + waiting ln N + moving (N - 1), where own is divided
    by N in strong scaling."""

    growth: Growth
    own: float
    crowding: float
    waiting: float
    moving: float
    margin: float
    """Its relative error, if that could be measured."""
    predicted: tuple[Point, ...]


def point_of(run: Run) -> Point | None:
    """The run as a point of the law; None if its wait was not measured."""
    if run.in_collectives is None:
        return None
    wait, moving = run.phases.get(PHASES[WAIT]) or 0.0, run.phases.get(PHASES[COMMUNICATION]) or 0.0
    return Point(run.ranks, max(0.0, run.mean.seconds - wait - moving), wait, moving)


def law_of(runs: Sequence[Run], growth: Growth) -> Law | str:
    """Fitted to runs that differ in their ranks alone; or a sentence why not."""
    ordered = _by_ranks([point for run in runs if (point := point_of(run)) is not None])
    if growth not in (Growth.STRONG, Growth.WEAK):
        return (
            "a law needs runs in which all ranks together (strong scaling) or each rank (weak "
            "scaling) have equally many samples in a step"
        )
    if len(ordered) < LEAST_COUNTS:
        return f"a law needs {LEAST_COUNTS} rank counts whose wait was measured, not {len(ordered)}"
    parts = _fitted(ordered, growth)
    before = _fitted(ordered[:-1], growth)
    last = ordered[-1]
    misses = [
        abs(_at(point.ranks, parts, growth).total / point.total - 1)
        for point in ordered
        if point.total
    ]
    ahead = abs(_at(last.ranks, before, growth).total / last.total - 1) if last.total else 0.0
    counts = [last.ranks * 2 ** (turn + 1) for turn in range(AHEAD)]
    return Law(
        growth,
        *parts,
        margin=max(*misses, ahead),
        predicted=tuple(_at(count, parts, growth) for count in counts),
    )


def _by_ranks(points: Sequence[Point]) -> list[Point]:
    """One point a count, from the fewest ranks on: the mean where a count was run several times."""
    result = []
    for ranks in sorted({point.ranks for point in points}):
        alike = [point for point in points if point.ranks == ranks]
        result.append(
            Point(
                ranks,
                mean(point.work for point in alike),
                mean(point.wait for point in alike),
                mean(point.communication for point in alike),
            )
        )
    return result


def _fitted(points: Sequence[Point], growth: Growth) -> tuple[float, float, float, float]:
    own, crowding = _least_squares(points, [point.work for point in points], (_own(growth), _more))
    (waiting,) = _least_squares(points, [point.wait for point in points], (log,))
    (moving,) = _least_squares(points, [point.communication for point in points], (_more,))
    return own, crowding, waiting, moving


def _at(ranks: int, parts: tuple[float, float, float, float], growth: Growth) -> Point:
    own, crowding, waiting, moving = parts
    return Point(
        ranks,
        own * _own(growth)(ranks) + crowding * _more(ranks),
        waiting * log(ranks),
        moving * _more(ranks),
    )


def _own(growth: Growth) -> Shape:
    return (lambda ranks: 1 / ranks) if growth is Growth.STRONG else (lambda _: 1.0)


def _more(ranks: int) -> float:
    return ranks - 1.0


def _least_squares(
    points: Sequence[Point], values: Sequence[float], shapes: Sequence[Shape]
) -> list[float]:
    """Factors of the shapes, relative errors counting alike; where the last one's would be below
    0 it is left out."""
    design = np.array([[shape(point.ranks) for shape in shapes] for point in points])
    weights = 1 / np.array([point.total or 1.0 for point in points])
    solution = np.linalg.lstsq(design * weights[:, None], np.array(values) * weights, rcond=None)[0]
    if solution[-1] >= 0:
        return [max(0.0, float(coefficient)) for coefficient in solution]
    if len(shapes) == 1:
        return [0.0]
    return [*_least_squares(points, values, shapes[:-1]), 0.0]


SAME = 0.02
"""Relative difference up to which two amounts of work count as equal: a last batch is smaller."""
AS_GOOD = 0.05
"""A run that is slower by less, and not shown to be slower, is as good as the fastest."""


class Growth(str, Enum):
    """How the work per step grows with the number of ranks."""

    STRONG = "strong"
    """Constant work per step: with more ranks, each does less."""
    WEAK = "weak"
    """Each rank's is the same: together they do more."""
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Scaled:
    """A run against the reference."""

    speed_up: Interval | None
    """Work a second, against the reference's; an interval without width where noise is unknown."""
    efficiency: float | None
    """Speed-up per rank, against the reference's: 1 is ideal."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """`reference`: place of the run with the fewest ranks. `runs`: one a run, in their order."""

    reference: int
    growth: Growth
    runs: tuple[Scaled, ...]
    reason: str | None = None
    """Why the speed-ups are None."""


@dataclass(frozen=True, slots=True)
class Best:
    """The run to take. `fastest`: the one with the most work a second; not the same where fewer
    ranks are as good."""

    place: int
    fastest: int


def reference_of(runs: Sequence[Run]) -> int:
    return min(range(len(runs)), key=lambda place: (runs[place].ranks, place))


def growth_of(runs: Sequence[Run], unit: str) -> Growth:
    """From the work of a step in runs of different rank counts."""
    known = [(run.work.of(unit), run.ranks) for run in runs]
    if unit == STEPS or len({run.ranks for run in runs}) < 2:
        return Growth.UNKNOWN
    if _equal([work or 0.0 for work, _ in known]):
        return Growth.STRONG
    return Growth.WEAK if _equal([(work or 0.0) / ranks for work, ranks in known]) else Growth.MIXED


def scaling(runs: Sequence[Run], unit: str) -> Scaling:
    """All runs against the one with the fewest ranks."""
    reference = reference_of(runs)
    growth = growth_of(runs, unit)
    several = len({run.ranks for run in runs}) > 1
    if several and unit == STEPS:
        unknown = Scaled(None, None)
        return Scaling(
            reference,
            growth,
            (unknown,) * len(runs),
            "the samples per step are unknown, so it is unknown how much more work more ranks do",
        )
    scaled = []
    for place, run in enumerate(runs):
        if place == reference:
            scaled.append(Scaled(Interval(1.0, 1.0, 1.0), 1.0 if several else None))
            continue
        against = pair(runs, reference, place, unit)
        if against.whole is not None:
            speed_up = against.whole.inverse
        else:
            rate, usual = run.rate(unit), runs[reference].rate(unit)
            plain = rate / usual if rate and usual else 1.0
            speed_up = Interval(plain, plain, plain)
        ideal = run.ranks / runs[reference].ranks
        scaled.append(Scaled(speed_up, speed_up.ratio / ideal if several else None))
    return Scaling(reference, growth, tuple(scaled))


def best(runs: Sequence[Run], unit: str) -> Best | None:
    """The best of several runs: of those not significantly slower than the fastest, the one with
    the fewest ranks. None if the work of a step is unknown and rank counts differ."""
    if unit == STEPS and len({run.ranks for run in runs}) > 1:
        return None
    places = range(len(runs))
    fastest = max(places, key=lambda place: runs[place].rate(unit) or 0.0)
    as_good = [
        place for place in places if place == fastest or _as_good(runs, fastest, place, unit)
    ]
    return Best(min(as_good, key=lambda place: (runs[place].ranks, place != fastest)), fastest)


def _as_good(runs: Sequence[Run], fastest: int, place: int, unit: str) -> bool:
    against = pair(runs, fastest, place, unit).whole
    return against is not None and not against.shown and against.ratio < 1 + AS_GOOD


def _equal(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + SAME)
