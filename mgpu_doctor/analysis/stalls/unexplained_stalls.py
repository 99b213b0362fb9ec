"""Unexplained stalls, separated from random interruptions by the machine.

A machine interrupts all ranks equally, at random moments, and in each phase in proportion to its
duration. Stalls are reported if that is unlikely: they come to the same rank, or at a regular
distance, or in a phase that is short by itself. The chances are multiplied and must stay below
`FALSE_ALARMS`, as the other tests of an examination do, whatever size of stall is looked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, INPUT, PHASES, WAIT

from mgpu_doctor.analysis.statistics.medians import blocks, column_medians, median_of_others
from mgpu_doctor.analysis.statistics.significance import FALSE_ALARMS, Period, period, tail_bound
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints

Indices = npt.NDArray[np.intp]

SPREADS = 2.5
LEAST = 0.10
"""A stall is longer than the usual by 3 standard deviations and a tenth of the step."""
CLEAR = 1.25
"""The median stall is this many times the least that counts as slow: noise at its edge is less."""
BACK = 1 / 3
"""Around its stalls a rank is back at what is usual: its median step then is longer by this share
of a stall at most. Else its level wavers about a limit, or rises, and nothing stalls."""
RECURS = 3
"""Least number of stalls that form a pattern."""
OUTLIER = 4.0
"""The third longest is the reference: longer ones count at most 4 times as much, so that one or two
long ones are not taken for what recurs."""
CULPRIT = 0.5
"""Ranks with this share of the most seconds are culprits, too."""
STANDS_OUT = 1 / 3
"""No other rank has more than this share of the least culprit's seconds."""
ONE_RUN = 0.5
"""Share of the seconds above which one long run is no recurrence but a change of level."""
WAITED = 0.5
"""The others must have waited for this share of the stall."""
REGULAR = 0.05
"""Chance of its distances above which a series on many ranks is what machines do."""
INTERRUPTED = 0.10
FETCHING = 0.25
"""Chance that an interruption strikes a short phase, at least; that of input is more, as it waits
for processes that can be interrupted, too."""
MANY_CELLS = 1_000_000
SAMPLED = 256
"""From this many cells on, the levels of ranks are estimated from a random sample of steps."""


@dataclass(frozen=True, slots=True)
class ComparedSteps:
    """The examined times, without NaN, in seconds; T steps × R ranks."""

    steps: Ints
    own: Floats
    """(T, R) own work without what is explained already"""
    communication: Floats
    """(T)"""


@dataclass(frozen=True, slots=True)
class Runs:
    """Neighbouring slow steps of one rank: one entry a run. Rows and columns of the grounds."""

    column: Indices
    first: Indices
    length: Indices
    seconds: Floats

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, chosen: npt.NDArray[np.bool_]) -> Runs:
        return Runs(
            self.column[chosen], self.first[chosen], self.length[chosen], self.seconds[chosen]
        )

    @property
    def cells(self) -> tuple[Indices, Indices]:
        """Rows and columns of all their steps."""
        ends = np.cumsum(self.length)
        within = np.arange(ends[-1]) - np.repeat(ends - self.length, self.length)
        return np.repeat(self.first, self.length) + within, np.repeat(self.column, self.length)

    @property
    def bound(self) -> float:
        """Seconds that one run may count."""
        return OUTLIER * float(np.partition(self.seconds, -RECURS)[-RECURS])


@dataclass(frozen=True, slots=True)
class StallSeries:
    """Stalls that belong together."""

    culprits: tuple[int, ...]
    """Columns, the one with most seconds first."""
    runs: Runs
    beyond: Floats
    """(T, R) seconds that a step took longer than usual."""
    period: Period | None
    chance: float
    """Chance that a machine does this to healthy ranks, in any phase of the step."""


def find_stall_series(grounds: ComparedSteps) -> tuple[StallSeries, ...]:
    """Candidates for stalls, one series per size; `find_struck_phase` and `measure_wait` decide."""
    beyond, slow, least = _beyond_usual(grounds)
    if least <= 0:
        return ()
    runs = _runs(beyond, slow, grounds.steps)
    if len(runs) < RECURS:
        return ()
    sizes = least * 2.0 ** np.arange(int(math.log2(runs.bound / OUTLIER / least)) + 1)
    all_series = []
    for size in sizes:
        series = _series(grounds, runs[runs.seconds >= size], size)
        if series is not None and _goes_back(beyond, series[1]):
            culprits, of_them, regular, chance = series
            all_series.append(StallSeries(culprits, of_them, beyond, regular, chance * len(sizes)))
    return tuple(all_series)


def _beyond_usual(grounds: ComparedSteps) -> tuple[Floats, npt.NDArray[np.bool_], float]:
    """For each step and rank, (T, R): the seconds above the rank's usual time, and whether the step
    is slow. Third: the least seconds that count as slow.

    The usual time is that of the quiet half of the steps, so that a stall in every second step is
    still a stall. A step that is slow for the other ranks, too, does not count; and a rank does not
    count as slow because the others were faster than usual.
    """
    sampled = _sample(grounds.own)
    usual, _ = _quiet_level(sampled)
    others = median_of_others(sampled)
    usual_of_others = column_medians(others)
    apart, spread = _quiet_level(np.subtract(sampled, others, out=others))  # no memory more
    del others
    step = float(np.median(grounds.own.max(axis=1) + grounds.communication))
    least = np.maximum(SPREADS * spread, LEAST * step)
    beyond = np.empty_like(grounds.own)
    slow = np.empty_like(grounds.own, dtype=np.bool_)
    for rows, own in blocks(grounds.own):
        others = median_of_others(own)
        longer = own - others - apart
        slow[rows] = (longer > least) & (longer >= others - usual_of_others)
        slow[rows] &= own - usual >= longer / 2
        beyond[rows] = longer
    return beyond, slow, float(least.min())


def _quiet_level(values: Floats) -> tuple[Floats, Floats]:
    """(R) the upper end of what is usual, and (R) the standard deviation, of (T, R) values."""
    by_rank = np.sort(values.T, axis=1)  # quantiles of unsorted values take four times as long
    shares = (0.05, 0.25, 0.75, 0.95)
    q5, q25, q75, q95 = np.quantile(by_rank, shares, axis=1, overwrite_input=True)
    spread = np.minimum(q25 - q5, q95 - q75) / 0.97  # the distance of these quantiles of a normal
    spread = np.maximum(spread, np.median(spread))
    return q25 + 0.67 * spread, spread


def _sample(values: Floats) -> Floats:
    """A sample of rows that is large enough to estimate levels."""
    if values.size <= MANY_CELLS or len(values) <= SAMPLED:
        return values
    return values[np.random.default_rng(0).permutation(len(values))[:SAMPLED]]


def _runs(beyond: Floats, slow: npt.NDArray[np.bool_], steps: Ints) -> Runs:
    """Neighbouring slow steps; those that are only a little slow beside a long one are left out."""
    column, row = np.nonzero(slow.T)
    seconds = beyond[row, column].astype(np.float64)
    first, length = _neighbours(column, row, steps)
    if len(row):
        longest = np.repeat(np.maximum.reduceat(seconds, first), length)
        kept = seconds >= longest / OUTLIER
        column, row, seconds = column[kept], row[kept], seconds[kept]
        first, length = _neighbours(column, row, steps)
    sums = np.add.reduceat(seconds, first) if len(row) else seconds
    return Runs(column[first], row[first], length, sums)


def _neighbours(column: Indices, row: Indices, steps: Ints) -> tuple[Indices, Indices]:
    """Start and length of each run in the sorted cells."""
    begins = np.ones(len(row), dtype=np.bool_)
    begins[1:] = (np.diff(column) != 0) | (np.diff(row) != 1) | (np.diff(steps[row]) != 1)
    first = np.flatnonzero(begins)
    return first, np.diff(np.append(first, len(row)))


def _series(
    grounds: ComparedSteps, runs: Runs, size: float
) -> tuple[tuple[int, ...], Runs, Period | None, float] | None:
    """The stalls of at least `size` as one series: whose, which, how regular, the chance of it."""
    if len(runs) < RECURS:
        return None
    ranks = grounds.own.shape[1]
    totals = np.bincount(runs.column, np.minimum(runs.seconds, runs.bound), minlength=ranks)
    order = np.argsort(-totals, kind="stable")
    leading = int(np.sum(totals >= CULPRIT * totals.max()))
    least, rest = totals[order[leading - 1]], totals[order[leading:]].max(initial=0.0)
    alone = 2 * leading <= ranks and rest <= STANDS_OUT * least
    culprits = order[:leading] if alone else order[totals[order] > 0]
    own_runs = runs[np.isin(runs.column, culprits)] if alone else runs
    regular = period(grounds.steps[np.unique(own_runs.first)])
    if (
        len(own_runs) < RECURS
        or np.median(own_runs.seconds) < CLEAR * size
        or own_runs.seconds.max() > ONE_RUN * own_runs.seconds.sum()
        or not (alone or (regular is not None and regular.chance < REGULAR))
    ):
        return None
    chance = regular.chance if regular else 1.0
    if alone:
        same = tail_bound(len(own_runs), len(runs), leading / ranks)
        chance *= min(1.0, math.comb(ranks, leading) * same)
    return tuple(int(column) for column in culprits), own_runs, regular, chance


def _goes_back(beyond: Floats, runs: Runs) -> bool:
    """Whether the ranks are quiet in the steps around their stalls."""
    ends = runs.first + runs.length
    rows = np.concatenate((runs.first - 2, runs.first - 1, ends, ends + 1))
    columns = np.tile(runs.column, 4)
    inside = (rows >= 0) & (rows < len(beyond))
    cells, stalled = (column * len(beyond) + row for row, column in ((rows, columns), runs.cells))
    quiet = inside & ~np.isin(cells, stalled)
    level = np.median(beyond[rows[quiet], columns[quiet]]) if quiet.any() else 0.0
    return bool(level <= BACK * np.median(runs.seconds / runs.length))


def find_struck_phase(phases: Floats, runs: Runs, columns: Indices) -> tuple[str, float]:
    """The phase that explains most of the stalls, and the chance that interruptions at random
    moments strike it so often. `phases`: (T, k, 10) of these columns."""
    own = [phase for phase in range(len(PHASES)) if phase not in (WAIT, COMMUNICATION)]
    seconds = np.nan_to_num(phases[:, :, own])
    usual = np.median(seconds, axis=0)
    place = np.searchsorted(columns, runs.column)
    extra = np.maximum(seconds[runs.first, place] - usual[place], 0)
    best = int(extra.sum(axis=0).argmax())
    hits = int((extra.argmax(axis=1) == best).sum())
    floor = FETCHING if own[best] == INPUT else INTERRUPTED
    share = max(floor, float(usual[:, best].sum() / max(usual.sum(), 1e-12)))
    return PHASES[own[best]], min(1.0, len(own) * tail_bound(hits, len(runs), min(1.0, share)))


def measure_wait(in_collectives: Floats, runs: Runs) -> float | None:
    """Median seconds that the other ranks spent longer in collectives than the stalled rank, in the
    step of the stall or, if it stalled after its collectives, in the next one. None if that does
    not match the stalls: then no rank waited for them."""
    gap = median_of_others(in_collectives) - in_collectives
    gap = gap - np.quantile(_sample(gap), 0.25, axis=0)
    last = len(in_collectives) - 1
    waits = [
        float(gap[first : min(first + length, last) + 1, column].sum())
        for column, first, length in zip(runs.column, runs.first, runs.length, strict=True)
    ]
    middle = float(np.median(waits))
    return middle if middle >= WAITED * np.median(runs.seconds) else None


def happens_by_chance(chance: float) -> bool:
    """Whether a machine does it too often to blame a rank."""
    return chance > FALSE_ALARMS
