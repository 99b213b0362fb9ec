"""Occasional stalls: on which rank, how often, how long, in which phase, and what they cost.

What a probe saw itself (the garbage collector, a checkpoint, an evaluation) is reported by its cost
alone, also in a job of one rank. Compilations are no stalls of a rank: `recompilation` has them. A
stall that nothing explains needs more: see `unexplained_stalls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from mgpu_probes.inprocess.layout import CHECKPOINT, EVALUATION

from mgpu_doctor.analysis.cost.what_if import saved_if_removed
from mgpu_doctor.analysis.stalls.rare_stalls import RareStalls, find_rare_stalls
from mgpu_doctor.analysis.stalls.recompilation import compiling_seconds
from mgpu_doctor.analysis.stalls.unexplained_stalls import (
    CULPRIT,
    OUTLIER,
    RECURS,
    ComparedSteps,
    StallSeries,
    find_stall_series,
    find_struck_phase,
    happens_by_chance,
    measure_wait,
)
from mgpu_doctor.analysis.statistics.medians import median_of_others
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, period
from mgpu_doctor.analysis.steps.step_alignment import Joined, UnjoinableError, join
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.analysis.structure.load_imbalance import without_load
from mgpu_doctor.case.model import Rank

ALONE = 2.0
"""A rank evaluates alone while it takes this many times as long as the median of the others."""
WORTH = 0.005
"""Share of the total time below which nothing is reported; rules have their own higher limits."""
LATE = 1.5
"""The first stall came late if it came after this multiple of the mean distance."""
PHASES_SEEN = {"checkpoint": CHECKPOINT, "evaluation": EVALUATION}
MOSTLY = 0.5
"""Share of its stalls that come in the steps of others, above which they are a part of those."""
KEPT = 100


@dataclass(frozen=True, slots=True)
class Stalls:
    """Steps that took much longer because of one thing that recurs."""

    ranks: tuple[int, ...]
    """The ranks that stalled, the one with most stall time first."""
    phase: str
    """The phase that explains most of the time; `gc` where it is the garbage collector."""
    steps: tuple[int, ...]
    """Step numbers, at most 100, the newest."""
    count: int
    period: float | None
    """Steps between two, where they are regular."""
    seconds: float
    """Median length of one."""
    saved: float
    """Share of the total time, 0..1, that is saved without them."""
    since: int | None = None
    """Step of the first, where it came later than usual; None: so it was from the start."""
    compared: int = 0
    """Steps that were looked at."""
    total: float = 0.0
    """Seconds of the culprit with most, in all those steps together."""
    waited: float | None = None
    """Median additional seconds of the others in collectives per stall."""
    running: float | None = None
    """Share of a stall, 0..1, in which the main thread ran on a CPU; None: not measured."""
    shared: float = 0.0
    """Median share of its phase's time that the other ranks spend in that phase at the same steps,
    0..1: where all ranks evaluate, the stall is only what this rank takes longer."""
    are_few: bool = False
    """Whether there are too few to recur for certain: they count because they are so long."""


@dataclass(frozen=True, slots=True)
class _Work:
    """The compared work, in seconds: T steps × R ranks."""

    joined: Joined
    own: Floats
    communication: Floats
    known: Ints
    """Rows in which the own work of every rank is known"""

    def saved(self, removed: Floats) -> float:
        return saved_if_removed(self.own, self.communication, removed)

    def since(self, steps: Ints) -> int | None:
        """The first of these steps, if it came later than they do from each other."""
        late = steps[0] - self.joined.steps[0] > LATE * np.diff(steps).mean()
        return int(steps[0]) if late else None


@dataclass(frozen=True, eq=False)
class Pauses:
    """What the events and histories of ranks tell about pauses."""

    compiling: Floats
    """(T, R) seconds in which a rank compiled"""
    rare: Mapping[str, RareStalls]
    """Phase -> stalls in the whole run"""

    @classmethod
    def of(cls, joined: Joined, ranks: Sequence[Rank]) -> Pauses:
        """Those of the joined ranks."""
        return cls(compiling_seconds(joined, ranks), _rare_stalls_of(ranks, PHASES_SEEN))

    def without_compiling(self, own: Floats) -> Floats:
        """(T, R) own work without the seconds in which a rank compiled."""
        return np.maximum(own - self.compiling, 0) if self.compiling.any() else own


def _rare_stalls_of(ranks: Sequence[Rank], phases: Iterable[str]) -> dict[str, RareStalls]:
    found = {name: find_rare_stalls(ranks, PHASES_SEEN[name], name) for name in phases}
    return {name: stalls for name, stalls in found.items() if stalls is not None}


def find_stalls(joined: Joined, attribution: Attribution, pauses: Pauses) -> tuple[Stalls, ...]:
    """Recurring stalls, the most expensive first; empty: none."""
    work = _work(joined, attribution)
    seen = _seconds_seen(work)
    rest = pauses.without_compiling(work.own)
    found_stalls = []
    for name, seconds in seen.items():
        found_stalls.append(
            _evaluations(work, seconds)
            if name == "evaluation"
            else _attributed(work, name, seconds)
        )
        rest = np.maximum(rest - seconds, 0)
    recurring_phases = {stalls.phase for stalls in found_stalls if stalls is not None}
    found_stalls += [
        _rare_stalls(work, name, stalls)
        for name, stalls in pauses.rare.items()
        if name not in recurring_phases
    ]
    explained = [stalls for stalls in found_stalls if stalls is not None]
    other = _unexplained(work, attribution, without_load(joined, rest))
    if other is not None and not any(_is_fringe(other, stalls) for stalls in explained):
        explained.append(other)
    return _worth_reporting(explained)


def find_stalls_alone(rank: Rank) -> tuple[Stalls, ...] | None:
    """What the probe saw stop a job of one rank: checkpoints, also those that only the history of
    the run holds, and the garbage collector. None: too few of its steps are known. No other rank
    shows what else is unusual."""
    try:
        joined = join((rank,), fewest=1)
    except UnjoinableError:
        return None
    if joined.is_sampled or len(joined.steps) < LEAST_STEPS:
        return None
    count = len(joined.steps)
    work = _Work(joined, joined.wall, np.zeros(count, joined.wall.dtype), np.arange(count))
    seen = _seconds_seen(work)
    seen.pop("evaluation", None)
    found_stalls = [_attributed(work, name, seconds) for name, seconds in seen.items()]
    if all(stalls is None or stalls.phase != "checkpoint" for stalls in found_stalls):
        rare = _rare_stalls_of((rank,), ("checkpoint",))
        found_stalls += [_rare_stalls(work, name, stalls) for name, stalls in rare.items()]
    return _worth_reporting(stalls for stalls in found_stalls if stalls is not None)


def _seconds_seen(work: _Work) -> dict[str, Floats]:
    """Name -> (T, R) seconds of what the probe timed itself, where there was any."""
    joined, seen = work.joined, {}
    for name in (*PHASES_SEEN, "gc"):  # one at a time: those of a large job take 10 MB
        phase = PHASES_SEEN.get(name)
        seconds = joined.collecting if phase is None else joined.phases[:, :, phase]
        if (seconds > 0).any():
            seen[name] = np.nan_to_num(seconds)
    if "gc" in seen and joined.is_device_timed:  # the host may collect while the device works on
        usual = np.nanmedian(work.own, axis=0)
        seen["gc"] = np.minimum(seen["gc"], np.maximum(np.nan_to_num(work.own - usual), 0))
    return seen


def _worth_reporting(explained: Iterable[Stalls]) -> tuple[Stalls, ...]:
    recurring = [stalls for stalls in explained if stalls.saved >= WORTH]
    return tuple(sorted(recurring, key=lambda stalls: -stalls.saved))


def _work(joined: Joined, attribution: Attribution) -> _Work:
    known = np.flatnonzero(~np.isnan(attribution.own).any(axis=1))
    return _Work(joined, attribution.own, attribution.communication, known)


def _alone(seconds: Floats) -> Floats:
    """The seconds of what only some ranks do. What all ranks do, at the same time or in total, is
    0: on busy cores any rank may take long for it."""
    others = median_of_others(seconds)
    whole = seconds.sum(axis=0, keepdims=True)
    more = (seconds >= ALONE * others) & (whole >= ALONE * median_of_others(whole))
    return np.where(more, seconds - others, 0.0)


def _evaluations(work: _Work, seconds: Floats) -> Stalls | None:
    """Stalls by what only some ranks evaluate, or do in the evaluation of all ranks."""
    stalls = _attributed(work, "evaluation", _alone(seconds))
    if stalls is None:
        return None
    rows = np.flatnonzero(np.isin(work.joined.steps, stalls.steps))
    column = work.joined.ranks.index(stalls.ranks[0])
    mine = seconds[rows, column]
    others = median_of_others(seconds)[rows, column]
    return replace(stalls, shared=float(np.median(others / np.maximum(mine, 1e-9))))


def _is_fringe(other: Stalls, explained: Stalls) -> bool:
    """Whether `other` is done by the same code around the explained stalls, such as opening and
    closing a checkpoint's file."""
    together = len({*other.steps} & {*explained.steps})
    return (
        other.seconds < explained.seconds
        and {*other.ranks} <= {*explained.ranks}
        and together >= MOSTLY * len(other.steps)
    )


def _attributed(work: _Work, name: str, seconds: Floats) -> Stalls | None:
    """Stalls that the probe measured, if they recur. Much shorter ones than the third longest are
    not of the same kind."""
    longest = seconds[work.known].max(axis=1)
    typical = float(np.partition(longest, -RECURS)[-RECURS]) if len(longest) >= RECURS else 0.0
    if typical <= 0:
        return None
    bounded = np.minimum(seconds, OUTLIER * typical)
    totals = bounded[work.known].sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    at = work.known[longest >= typical / OUTLIER]
    steps = work.joined.steps[at]
    regular = period(steps)
    who = seconds[at].argmax(axis=1)
    lengths = seconds[at, who]
    return Stalls(
        ranks=tuple(work.joined.ranks[c] for c in order if totals[c] >= CULPRIT * totals.max()),
        phase=name,
        steps=tuple(steps[-KEPT:].tolist()),
        count=len(at),
        period=regular.steps if regular else None,
        seconds=float(np.median(lengths)),
        saved=work.saved(bounded),
        since=work.since(steps),
        compared=len(work.known),
        total=float(totals.max()),
        running=None if name == "gc" else _running(work.joined, at, who, lengths),
    )


def _rare_stalls(work: _Work, name: str, rare_stalls: RareStalls) -> Stalls | None:
    """Stalls that are too rare in the step records, by the sums over the whole run."""
    if not rare_stalls.is_beyond(len(work.known)):
        return None
    totals = rare_stalls.totals
    if name == "evaluation":
        totals = _alone(totals[None])[0]
    order = np.argsort(-totals, kind="stable")
    return Stalls(
        ranks=tuple(rare_stalls.ranks[at] for at in order if totals[at] >= CULPRIT * totals.max()),
        phase=name,
        steps=rare_stalls.steps_seen[-KEPT:],
        count=rare_stalls.count,
        period=rare_stalls.period.steps if rare_stalls.period else None,
        seconds=rare_stalls.seconds,
        saved=float(min(1.0, totals.max() / rare_stalls.wall)) if rare_stalls.wall > 0 else 0.0,
        compared=rare_stalls.steps,
        total=float(totals.max()),
    )


def _unexplained(work: _Work, attribution: Attribution, rest: Floats) -> Stalls | None:
    """Stalls without a measured cause: the series of pauses that is least likely to be chance."""
    joined = work.joined
    whole = len(work.known) == len(rest)
    rows = slice(None) if whole else work.known  # a slice copies nothing
    candidates = []
    compared = ComparedSteps(joined.steps[rows], rest[rows], attribution.communication[rows])
    for series in find_stall_series(compared):
        columns = np.unique(series.runs.column)
        phase, in_phase = find_struck_phase(joined.phases[:, columns][rows], series.runs, columns)
        candidates.append((series.chance * in_phase, phase, series))
    chance, phase, best = min(candidates, key=lambda values: values[0], default=(1.0, "", None))
    if best is None or happens_by_chance(chance):
        return None
    waits = measure_wait(attribution.in_collectives[rows], best.runs)
    return None if waits is None else _described(work, rest, best, phase, waits)


def _described(work: _Work, rest: Floats, series: StallSeries, phase: str, waits: float) -> Stalls:
    joined, runs = work.joined, series.runs
    start = work.known[runs.first]
    counted = np.repeat(np.minimum(1, runs.bound / runs.seconds), runs.length)
    rows, columns = runs.cells
    removed = np.zeros_like(rest)
    removed[work.known[rows], columns] = series.beyond[rows, columns] * counted
    steps = joined.steps[np.unique(start)]
    return Stalls(
        ranks=tuple(joined.ranks[column] for column in series.culprits),
        phase=phase,
        steps=tuple(steps[-KEPT:].tolist()),
        count=len(steps),
        period=series.period.steps if series.period else None,
        seconds=float(np.median(runs.seconds)),
        saved=work.saved(removed),
        since=work.since(steps),
        compared=len(work.known),
        total=float(removed.sum(axis=0).max()),
        waited=waits,
        running=_running(joined, start, runs.column, runs.seconds),
    )


def _running(joined: Joined, rows: Ints, columns: Ints, seconds: Floats) -> float | None:
    """Share of the stalls in which the main thread was on a CPU; None: not measured, or stalls are
    so many that no other steps show how long it is on a CPU without."""
    if 2 * len(rows) > len(joined.steps):
        return None
    mine = joined.running[:, np.unique(columns)]
    if np.isnan(mine).all(axis=0).any():
        return None
    usual = np.nanmedian(mine, axis=0)[np.searchsorted(np.unique(columns), columns)]
    shares = (joined.running[rows, columns] - usual) / np.maximum(seconds, 1e-9)
    shares = shares[~np.isnan(shares)]
    return float(np.clip(np.median(shares), 0, 1)) if len(shares) else None
