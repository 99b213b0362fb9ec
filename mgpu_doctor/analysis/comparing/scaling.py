"""How well more ranks pay: speed-up, efficiency, and the count that is worth having."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.comparing.noise import Interval
from mgpu_doctor.analysis.comparing.pairs import pair
from mgpu_doctor.analysis.comparing.run import STEPS, Run

SAME = 0.02
"""Relative difference up to which two amounts of work count as equal: a last batch is smaller."""
AS_GOOD = 0.05
"""A run that is slower by less, and not shown to be slower, is as good as the fastest."""


class Growth(str, Enum):
    """How the work of a step grows with the ranks."""

    STRONG = "strong"
    """It is the same whatever the ranks: each has less of it."""
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
            "the samples of a step are not known, so nobody can tell how much more ranks do",
        )
    found = []
    for place, run in enumerate(runs):
        if place == reference:
            found.append(Scaled(Interval(1.0, 1.0, 1.0), 1.0 if several else None))
            continue
        against = pair(runs, reference, place, unit)
        if against.whole is not None:
            speed_up = against.whole.inverse
        else:
            rate, usual = run.rate(unit), runs[reference].rate(unit)
            plain = rate / usual if rate and usual else 1.0
            speed_up = Interval(plain, plain, plain)
        ideal = run.ranks / runs[reference].ranks
        found.append(Scaled(speed_up, speed_up.ratio / ideal if several else None))
    return Scaling(reference, growth, tuple(found))


def best(runs: Sequence[Run], unit: str) -> Best | None:
    """Where rank counts or settings compete: the fewest ranks of those that are not shown to be
    slower than the fastest; None where a step's work is unknown and rank counts differ."""
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
