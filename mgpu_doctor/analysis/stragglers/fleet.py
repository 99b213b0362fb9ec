"""Slow ranks among many: each is compared with what all of them show. Pure.

Many ranks show what is usual: how much a step varies, how alike neighbouring steps are, how far
healthy ranks differ permanently. So a rank need not show all that by itself, and few steps decide.
For every length n, the latest n steps of a rank are compared with what its earlier steps and the
other ranks predict (the best linear prediction of a random effect; Robinson 1991). The error of
that difference is the larger of what the noise of a step implies and of what the ranks show among
each other at this length, which includes slow drifts. The limit is that of a likelihood-ratio scan
evaluated after every step (Siegmund & Venkatraman 1995), so looking often costs nothing. Measured:
benchmarks/detection.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from mgpu_doctor.analysis.statistics.medians import BLOCK, column_medians
from mgpu_doctor.analysis.statistics.significance import HEAD, LEAST_STEPS, MOST_STEPS, Persistent
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.work_and_wait import (
    OWN_PHASES,
    REFERENCE,
    Attribution,
    phase_excess,
    reference,
)

LEAST_RANKS = 32
"""Fewer ranks do not tell what is usual."""
SHORTEST = 5
"""Steps that a rise must have lasted."""
GROWTH = 1.12
"""Between two lengths that are looked at."""
CLIP = 3.0
"""A step counts at most so many usual deviations: garbage collection is no slowdown."""
FALSE_ALARMS = 0.02
"""Expected in a healthy job each time its length doubles, were the noise Gaussian."""
RATE = 1e-6
"""The same for a rank and step at most, in small and short jobs."""
LEVEL_ALARMS = 0.01
"""Expected of the ranks of a healthy job to stand out from the start, at one look."""
LEVEL_RATE = 1e-4
"""The same for one rank at most, where they are few."""
TO_NORMAL = 1.4826
"""From median absolute deviation to standard deviation."""
EFFICIENCY = 0.37
"""Of a median absolute deviation, against the standard deviation (Huber 1981)."""
ALIKE_AT_MOST = 0.95


def rise_limit(ranks: int, steps: int) -> float:
    """Deviations that a rise must measure in a job of so many ranks and steps so far: where the
    time between false alarms (Siegmund & Venkatraman 1995) is as long as wanted."""
    wanted = max(ranks * steps / FALSE_ALARMS, 1 / RATE)
    low, high = 1.0, 20.0
    for _ in range(40):
        limit = (low + high) / 2
        overshoot = (1 - math.exp(-1.166 * limit) * (1 + 1.166 * limit)) / 1.166**2
        between = math.sqrt(2 * math.pi) * math.exp(limit * limit / 2) / (limit * overshoot)
        low, high = (limit, high) if between < wanted else (low, limit)
    return high


def level_limit(ranks: int) -> float:
    """Deviations by which a rank that is slow from the start must stand out of so many: the
    Gaussian quantile with the first Cornish-Fisher term, as their spread is only estimated."""
    gauss = NormalDist().inv_cdf(1 - min(LEVEL_RATE, LEVEL_ALARMS / ranks))
    return gauss * (1 + (gauss * gauss + 1) / (4 * EFFICIENCY * min(ranks, REFERENCE)))


@dataclass(frozen=True, slots=True)
class Usual:
    """What healthy ranks show, by lengths n of newest steps, the last one being all T steps.
    Deviations are in units of `scale`."""

    scale: float
    """Of one step of a rank, in the unit of the series."""
    variance: float
    """Of the mean of n steps, times n: neighbouring steps that are alike widen it."""
    alike: float
    """Lag-one autocorrelation."""
    centre: float
    """Level of the median rank."""
    lengths: Ints
    weights: Floats
    """How much of a rank's earlier deviation is to be expected to stay."""
    shifts: Floats
    """Of the median rank."""
    errors: Floats

    def of(self, values: Floats) -> tuple[Floats, Floats]:
        """Of (T, k) series, k each: how the newest steps stand out, and how all of them do, in
        standard errors; the first is the largest over all lengths but the last."""
        shifts = _shifts(values, self.scale, self.centre, self.lengths, self.weights)
        strength = (shifts - self.shifts[:, None]) / self.errors[:, None]
        return strength[:-1].max(axis=0, initial=-math.inf), strength[-1]


def learn(values: Floats, *, resolution: float) -> Usual:
    """What is usual, from (T, S) series of ranks that are healthy but for a few. `resolution`:
    least deviation that means anything, same unit."""
    count = len(values)
    base = column_medians(values)
    scale = max(resolution, TO_NORMAL * float(np.median(column_medians(np.abs(values - base)))))
    clipped = np.clip((values - base) / scale, -CLIP, CLIP)
    clipped -= clipped.mean(axis=0)
    squares = np.einsum("ij,ij->j", clipped, clipped) + 1e-12
    alike = autocorrelation(clipped, squares)
    variance = float(np.median(squares)) / (count - 1) * widened(alike)
    variance = max(variance, 1e-6)
    lengths = _lengths(count)
    earlier = count - lengths
    # How much healthy ranks differ for good, in steps' variances; too little would be dangerous.
    centre = float(np.median(base))
    levels = _shifts(values, scale, centre, lengths[-1:], np.zeros(1))[0]
    doubt = 1 / math.sqrt(2 * EFFICIENCY * values.shape[1])
    differ = (1 + doubt) * float(_spreads(levels))
    between = max(0.0, differ**2 / variance - 1 / count)
    weights = earlier * between / (earlier * between + 1)  # nothing known before: none
    unsure = np.sqrt(variance * (1 / lengths + between / (earlier * between + 1)))
    shifts = _shifts(values, scale, centre, lengths, weights)
    spreads = _spreads(shifts)
    errors = np.maximum(unsure, spreads / (1 + doubt))
    errors[-1] = max(spreads[-1], math.sqrt(variance / count))
    return Usual(
        scale=scale,
        variance=variance,
        alike=alike,
        centre=centre,
        lengths=lengths,
        weights=weights,
        shifts=np.median(shifts, axis=1),
        errors=errors,
    )


def autocorrelation(centred: Floats, squares: Floats) -> float:
    """Lag one, of the median column, its bias in short series mended (Kendall 1954)."""
    alike = float(np.median(np.einsum("ij,ij->j", centred[1:], centred[:-1]) / squares))
    return min(ALIKE_AT_MOST, max(0.0, alike + (1 + 3 * alike) / len(centred)))


def widened(alike: float) -> float:
    """Variance of a mean over that of independent steps."""
    return (1 + alike) / (1 - alike)


def _lengths(count: int) -> Ints:
    lengths, length = [], SHORTEST
    while length <= count - SHORTEST:
        lengths.append(length)
        length = max(length + 1, int(length * GROWTH))
    return np.array([*lengths, count], dtype=np.int64)


def _shifts(values: Floats, scale: float, centre: float, lengths: Ints, weights: Floats) -> Floats:
    """(lengths, k) how far the newest steps of each series lie above what is expected of it."""
    base = column_medians(values)
    clipped = np.clip((values - base) / scale, -CLIP, CLIP)
    sums = np.cumsum(clipped[::-1], axis=0)[lengths - 1]
    newest = sums / lengths[:, None]
    before = (sums[-1] - sums) / np.maximum(len(values) - lengths, 1)[:, None]
    kept = weights[:, None]
    return np.asarray(newest - kept * before + (1 - kept) * (base - centre) / scale)


def _spreads(values: Floats) -> Floats:
    """Of each row, as a standard deviation."""
    centres = np.median(values, axis=-1, keepdims=True)
    return np.asarray(TO_NORMAL * np.median(np.abs(values - centres), axis=-1))


CHANGED = 3.7
"""Deviations by which the level before the onset and after it must differ for an excess to be
called one that came later: one in a hundred series of some hundred steps has such a one by chance
(its maximum over all onsets)."""
OVER = 3.0
"""Deviations by which the newest steps must fall short of the excess for it to be over."""
LATEST = 8
"""Newest steps that are looked at alone, and twice as many, and so on."""
OWN_NOISE = 1.65
"""A rank counts as noisier than the others only beyond the error of its own estimate."""


def lasting(
    series: Floats, usual: Usual, *, rise: float, level: float, floor: float
) -> Persistent | None:
    """The excess that lasts to the end of the series, or None.

    `rise`, `level`: the strength that the scan found for the newest steps and for all of them, as
    multiples of their limits; `floor`: least effect of interest, in the unit of the series.
    """
    onset, change = _onset(series, usual)
    later = onset >= HEAD and (rise >= 1 or change >= CHANGED)
    if not later or np.median(series[:onset]) >= np.median(series[onset:]) / 2:
        if level < 1:
            return None
        onset = 0
    newest = series[onset:]
    scale, variance = _own_noise(series, onset, usual)
    effect = _mean(newest, scale)
    error = scale * math.sqrt(variance / len(newest))
    sure = (rise if onset else level) * usual.scale / scale * math.sqrt(usual.variance / variance)
    positive = float(np.mean(newest > 0))
    if effect < floor or sure < 1 or positive < MOST_STEPS:
        return None
    middle = len(newest) // 2
    slack = error * math.sqrt(2)
    halves = (_mean(newest[:middle], scale), _mean(newest[middle:], scale))
    if min(halves) < effect / 2 - slack or _is_over(newest, effect, scale, variance):
        return None
    return Persistent(effect, min(sure, effect / floor), positive, onset)


def _onset(series: Floats, usual: Usual) -> tuple[int, float]:
    """Where the level most likely rose, and by how many standard errors."""
    count = len(series)
    clipped = np.clip((series - np.median(series)) / usual.scale, -CLIP, CLIP)
    before = np.arange(1, count - SHORTEST + 1)
    walk = np.cumsum(clipped - clipped.mean())[: len(before)]
    strength = -walk / np.sqrt(usual.variance * before * (count - before) / count)
    at = int(np.argmax(strength))
    return at + 1, float(strength[at])


def _own_noise(series: Floats, onset: int, usual: Usual) -> tuple[float, float]:
    """Scale and variance as in `Usual`, larger where this rank is noisier than the others or its
    steps are more alike."""
    parts = [part - np.median(part) for part in (series[:onset], series[onset:]) if len(part)]
    around = np.concatenate(parts)
    sure = 1 - OWN_NOISE / math.sqrt(len(around))
    own = TO_NORMAL * float(np.median(np.abs(around)))
    scale = max(usual.scale, own * sure)
    clipped = np.clip(around / scale, -CLIP, CLIP)[:, None]
    squares = np.einsum("ij,ij->j", clipped, clipped) + 1e-12
    alike = autocorrelation(clipped, squares) - 2 / math.sqrt(len(around))
    wider = max(1.0, widened(max(0.0, alike)) / widened(usual.alike))
    return scale, usual.variance * wider


def _mean(values: Floats, scale: float) -> float:
    """Of values clipped around their median."""
    centre = float(np.median(values))
    return centre + scale * float(np.mean(np.clip((values - centre) / scale, -CLIP, CLIP)))


def _is_over(newest: Floats, effect: float, scale: float, variance: float) -> bool:
    length = LATEST
    while length < len(newest):
        latest = _mean(newest[-length:], scale)
        if latest < effect / 2 and effect - latest > OVER * scale * math.sqrt(variance / length):
            return True
        length *= 2
    return False


RESOLUTION = 1e-4
"""Share of the median rank's work below which no deviation means anything."""
LIKELY = 0.5
"""Share of the floor that a rank's sum must show for its phases to be looked at one by one."""
MOST_LIKELY = 256
"""Ranks whose phases are looked at: those with the largest sums."""

UNKNOWN = 0.5
"""Share of steps; a rank whose phase was measured less often is not compared."""

Excess = Callable[[Ints], Floats]
"""(T, k) seconds of k columns."""


def among_many(
    joined: Joined, attribution: Attribution, floor: float
) -> dict[int, list[Persistent]]:
    """Columns whose own work, or a phase of it, lasts longer than the others' by `floor` seconds
    at least, and in what ways."""
    fleet = _Fleet.of(joined, attribution, floor)
    everybody = np.arange(len(joined.ranks))
    found = fleet.lasting(lambda columns: attribution.excess[:, columns], everybody)
    late = column_medians(attribution.excess[-2 * LEAST_STEPS :])
    likely = np.argsort(-late)[:MOST_LIKELY]
    likely = np.sort(likely[late[likely] >= LIKELY * floor])
    for phase in OWN_PHASES if len(likely) else ():
        more = fleet.lasting(_excess_in(joined, phase), likely)
        for column, ways in more.items():
            found.setdefault(column, []).extend(ways)
    return found


def _excess_in(joined: Joined, phase: int) -> Excess:
    """Computed at once where it is not much."""
    if len(joined.ranks) > REFERENCE:
        return partial(phase_excess, joined, phase)
    whole = phase_excess(joined, phase)
    return lambda columns: whole[:, columns]


@dataclass(frozen=True, slots=True)
class _Fleet:
    rows: Ints
    """Steps in which every rank's work is known."""
    pace: Floats
    """Usual over actual work of the median rank: a long step makes all differences longer."""
    usual: float
    """Seconds of the median rank's work."""
    ranks: int
    steps: int
    """Of the job so far, which is as often as it may have been looked at."""
    floor: float

    @classmethod
    def of(cls, joined: Joined, attribution: Attribution, floor: float) -> _Fleet:
        rows = np.flatnonzero(~np.isnan(attribution.typical))
        work = attribution.typical[rows]
        usual = float(np.median(work))
        return cls(
            rows=rows,
            pace=usual / np.maximum(work, max(usual, 1e-9) * 1e-3),
            usual=usual,
            ranks=len(joined.ranks),
            steps=int(joined.steps[-1]) + 1,
            floor=floor,
        )

    def lasting(self, excess: Excess, columns: Ints) -> dict[int, list[Persistent]]:
        """Of these columns, those whose excess lasts."""
        known, _ = self._series(excess(reference(self.ranks)))
        if known.shape[1] < LEAST_RANKS:
            return {}
        usual = learn(known, resolution=RESOLUTION * self.usual)
        rise_needed, level_needed = rise_limit(self.ranks, self.steps), level_limit(self.ranks)
        size = max(1, BLOCK // len(self.rows))
        found: dict[int, list[Persistent]] = {}
        for start in range(0, len(columns), size):
            some = columns[start : start + size]
            series, places = self._series(excess(some))
            newest, whole = usual.of(series)
            rise, level = newest / rise_needed, whole / level_needed
            for at in np.flatnonzero((rise >= 1) | (level >= 1)).tolist():
                one = lasting(
                    series[:, at],
                    usual,
                    rise=float(rise[at]),
                    level=float(level[at]),
                    floor=self.floor,
                )
                if one is not None:
                    onset = int(self.rows[one.onset]) if one.onset else 0
                    found[int(some[places[at]])] = [replace(one, onset=onset)]
        return found

    def _series(self, seconds: Floats) -> tuple[Floats, Ints]:
        """(T, k) at the usual pace, of those columns that are known in most steps, and which they
        are; what is not known counts as usual for its rank."""
        series = np.array(seconds[self.rows].T, order="C")
        series *= self.pace.astype(series.dtype)
        unknown = np.isnan(series)
        kept = np.arange(len(series))
        if unknown.any():
            kept = np.flatnonzero(unknown.mean(axis=1) < UNKNOWN)
            series, unknown = series[kept], unknown[kept]
            usual = column_medians(series.T)
            series = np.where(unknown, usual[:, None], series)
        return np.asarray(series.T), kept
