"""Slow ranks in large jobs: each rank is compared with statistics of all ranks. Pure.

All ranks together show what is usual: how much steps vary, how strongly neighbouring steps are
correlated, and how far healthy ranks differ permanently. So few steps of one rank suffice to find
it. For every length n, the latest n steps of a rank are compared with the prediction from its
earlier steps and the other ranks (the best linear prediction of a random effect; Robinson 1991).
The error of the difference is the larger of two: the one that the noise of a step implies, and the
one seen among the ranks at this length, which includes slow drifts. The limit is that of a
likelihood-ratio scan evaluated after every step (Siegmund & Venkatraman 1995), so frequent
evaluation adds no false alarms. Measured: benchmarks/detection.py.
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
from mgpu_doctor.recording.second_process import call_all

LEAST_RANKS = 32
"""Fewer ranks do not show what is usual."""
SHORTEST = 5
"""Minimum number of steps of a rise."""
GROWTH = 1.12
"""Ratio between consecutive lengths."""
CLIP = 3.0
"""Deviations at which a step is clipped: a garbage collection is no slowdown."""
FALSE_ALARMS = 0.02
"""Expected number in a healthy job whenever its length doubles, for Gaussian noise."""
RATE = 1e-6
"""Maximum per rank and step, which applies to small and short jobs."""
LEVEL_ALARMS = 0.01
"""Expected number of healthy ranks that appear slow from the start, per evaluation."""
LEVEL_RATE = 1e-4
"""Maximum of the same per rank, which applies to few ranks."""
TO_NORMAL = 1.4826
"""Factor from median absolute deviation to standard deviation."""
EFFICIENCY = 0.37
"""Statistical efficiency of the median absolute deviation (Huber 1981)."""
ALIKE_AT_MOST = 0.95


def rise_limit(ranks: int, steps: int) -> float:
    """Minimum rise, in deviations, for a job of `ranks` ranks and `steps` steps so far: the value
    at which false alarms are as rare as wanted (Siegmund & Venkatraman 1995)."""
    wanted = max(ranks * steps / FALSE_ALARMS, 1 / RATE)
    low, high = 1.0, 20.0
    for _ in range(40):
        limit = (low + high) / 2
        overshoot = (1 - math.exp(-1.166 * limit) * (1 + 1.166 * limit)) / 1.166**2
        between = math.sqrt(2 * math.pi) * math.exp(limit * limit / 2) / (limit * overshoot)
        low, high = (limit, high) if between < wanted else (low, limit)
    return high


def level_limit(ranks: int) -> float:
    """Minimum excess, in deviations, of a rank that is slow from the start: the Gaussian quantile
    with the first Cornish-Fisher term, as the spread of the ranks is only estimated."""
    gauss = NormalDist().inv_cdf(1 - min(LEVEL_RATE, LEVEL_ALARMS / ranks))
    return gauss * (1 + (gauss * gauss + 1) / (4 * EFFICIENCY * min(ranks, REFERENCE)))


@dataclass(frozen=True, slots=True)
class Usual:
    """Statistics of healthy ranks, by length n of the newest steps; the last length is all T steps.
    Deviations are in units of `scale`."""

    scale: float
    """Deviation of one step of a rank, in the unit of the series."""
    variance: float
    """Variance of the mean of n steps, times n; autocorrelation increases it."""
    alike: float
    """Lag-one autocorrelation."""
    centre: float
    """Level of the median rank."""
    lengths: Ints
    weights: Floats
    """Share of a rank's earlier deviation that is expected to persist."""
    shifts: Floats
    """Shift of the median rank."""
    errors: Floats

    def of(self, values: Floats) -> tuple[Floats, Floats]:
        """For (T, k) series, k values each: the excess of the newest steps (the largest over all
        lengths but the last), and of all steps, in standard errors."""
        base = column_medians(values)
        sums = _sums(values, base, self.scale, self.lengths)
        shifts = _shifts(sums, base - self.centre, self.scale, self.lengths, self.weights)
        strength = (shifts - self.shifts[:, None]) / self.errors[:, None]
        return strength[:-1].max(axis=0, initial=-math.inf), strength[-1]


def learn(values: Floats, *, resolution: float) -> Usual:
    """Usual values of (T, S) series of ranks, most of which are healthy. `resolution`: smallest
    meaningful deviation, in the unit of the series."""
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
    # Permanent differences of healthy ranks, in variances of a step; too small would be unsafe.
    centre = float(np.median(base))
    sums, levels = _sums(values, base, scale, lengths), base - centre
    all_steps = _shifts(sums[-1:], levels, scale, lengths[-1:], np.zeros(1))[0]
    doubt = 1 / math.sqrt(2 * EFFICIENCY * values.shape[1])
    differ = (1 + doubt) * float(_spreads(all_steps))
    between = max(0.0, differ**2 / variance - 1 / count)
    weights = earlier * between / (earlier * between + 1)  # no earlier steps: 0
    unsure = np.sqrt(variance * (1 / lengths + between / (earlier * between + 1)))
    shifts = _shifts(sums, levels, scale, lengths, weights)
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
    """Lag-one autocorrelation of the median column, corrected for short series (Kendall 1954)."""
    alike = float(np.median(np.einsum("ij,ij->j", centred[1:], centred[:-1]) / squares))
    return min(ALIKE_AT_MOST, max(0.0, alike + (1 + 3 * alike) / len(centred)))


def widened(alike: float) -> float:
    """Factor by which autocorrelation increases the variance of a mean."""
    return (1 + alike) / (1 - alike)


def _lengths(count: int) -> Ints:
    lengths, length = [], SHORTEST
    while length <= count - SHORTEST:
        lengths.append(length)
        length = max(length + 1, int(length * GROWTH))
    return np.array([*lengths, count], dtype=np.int64)


def _sums(values: Floats, base: Floats, scale: float, lengths: Ints) -> Floats:
    """(lengths, k) sums of the newest steps' clipped deviations from the (k) medians `base`."""
    clipped = np.clip((values - base) / scale, -CLIP, CLIP)
    return np.asarray(np.cumsum(clipped[::-1], axis=0)[lengths - 1])


def _shifts(sums: Floats, levels: Floats, scale: float, lengths: Ints, weights: Floats) -> Floats:
    """(lengths, k) how far the newest steps of each series exceed their prediction. The last of the
    lengths is all steps; `levels`: (k) each series' median beyond that of the median rank."""
    newest = sums / lengths[:, None]
    before = (sums[-1] - sums) / np.maximum(lengths[-1] - lengths, 1)[:, None]
    kept = weights[:, None]
    return np.asarray(newest - kept * before + (1 - kept) * levels / scale)


def _spreads(values: Floats) -> Floats:
    """Robust standard deviation of each row."""
    centres = np.median(values, axis=-1, keepdims=True)
    return np.asarray(TO_NORMAL * np.median(np.abs(values - centres), axis=-1))


CHANGED = 3.7
"""Deviations between the levels before and after the onset, from which an excess counts as one that
began later. By chance, one in a hundred series of some hundred steps exceeds it (maximum over all
onsets)."""
OVER = 3.0
"""Deviations by which the newest steps must fall below the excess for it to be over."""
LATEST = 8
"""Number of newest steps that are checked alone, then twice as many, and so on."""
OWN_NOISE = 1.65
"""Errors of its estimate by which a rank must be noisier than the others to count as noisier."""


def lasting(
    series: Floats, usual: Usual, *, rise: float, level: float, floor: float
) -> Persistent | None:
    """The excess that lasts to the end of the series, or None.

    `rise`, `level`: strength of the newest steps and of all steps, as multiples of their limits;
    `floor`: smallest relevant effect, in the unit of the series.
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
    """Index at which the level most likely rose, and by how many standard errors."""
    count = len(series)
    clipped = np.clip((series - np.median(series)) / usual.scale, -CLIP, CLIP)
    before = np.arange(1, count - SHORTEST + 1)
    walk = np.cumsum(clipped - clipped.mean())[: len(before)]
    strength = -walk / np.sqrt(usual.variance * before * (count - before) / count)
    at = int(np.argmax(strength))
    return at + 1, float(strength[at])


def _own_noise(series: Floats, onset: int, usual: Usual) -> tuple[float, float]:
    """Scale and variance as in `Usual`, larger if this rank is noisier than the others or its steps
    are more correlated."""
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
    """Mean of the values clipped around their median."""
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
"""Share of the median rank's work below which a deviation is meaningless."""
LIKELY = 0.5
"""Share of the floor that a rank's total excess must reach for its phases to be examined."""
MOST_LIKELY = 256
"""Maximum number of ranks whose phases are examined: those with the largest total excess."""

UNKNOWN = 0.5
"""A phase that was not measured in this share of a rank's steps is not compared."""

Excess = Callable[[Ints], Floats]
"""(T, k) seconds of k columns."""


def find_in_large_job(
    joined: Joined, attribution: Attribution, floor: float
) -> dict[int, list[Persistent]]:
    """Column -> lasting excesses of its own work, or of a phase, of at least `floor` seconds."""
    fleet = _Fleet.of(joined, attribution, floor)
    everybody = np.arange(len(joined.ranks))
    by_rank = fleet.lasting(attribution.excess_of, everybody)
    late = column_medians(attribution.newest(2 * LEAST_STEPS).excess)
    likely = np.argsort(-late)[:MOST_LIKELY]
    likely = np.sort(likely[late[likely] >= LIKELY * floor])
    for phase in OWN_PHASES if len(likely) else ():
        more = fleet.lasting(_excess_in(joined, phase), likely)
        for column, ways in more.items():
            by_rank.setdefault(column, []).extend(ways)
    return by_rank


def _excess_in(joined: Joined, phase: int) -> Excess:
    """Excess of columns in a phase; computed for all columns at once in smaller jobs."""
    if len(joined.ranks) > REFERENCE:
        return partial(phase_excess, joined, phase)
    whole = phase_excess(joined, phase)
    return lambda columns: whole[:, columns]


@dataclass(frozen=True, slots=True)
class _Fleet:
    rows: Ints
    """Steps in which every rank's work is known."""
    pace: Floats
    """(T) usual / actual work of the median rank, as longer steps have larger differences."""
    usual: float
    """Seconds of the median rank's work."""
    ranks: int
    steps: int
    """Steps of the job so far: the possible number of evaluations."""
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
        """Column -> excess, for those of `columns` whose excess lasts."""
        known, _ = self._series(excess(reference(self.ranks)))
        if known.shape[1] < LEAST_RANKS:
            return {}
        usual = learn(known, resolution=RESOLUTION * self.usual)
        size = max(1, BLOCK // len(self.rows))
        parts = [columns[start : start + size] for start in range(0, len(columns), size)]
        calls = [partial(self._lasting_among, usual, excess, part) for part in parts]
        by_rank: dict[int, list[Persistent]] = {}
        for some in call_all(calls, len(self.rows) * len(columns)):
            by_rank |= some
        return by_rank

    def _lasting_among(
        self, usual: Usual, excess: Excess, columns: Ints
    ) -> dict[int, list[Persistent]]:
        rise_needed, level_needed = rise_limit(self.ranks, self.steps), level_limit(self.ranks)
        series, places = self._series(excess(columns))
        newest, whole = usual.of(series)
        rise, level = newest / rise_needed, whole / level_needed
        by_rank: dict[int, list[Persistent]] = {}
        for at in np.flatnonzero((rise >= 1) | (level >= 1)).tolist():
            persistent = lasting(
                series[:, at],
                usual,
                rise=float(rise[at]),
                level=float(level[at]),
                floor=self.floor,
            )
            if persistent is not None:
                onset = int(self.rows[persistent.onset]) if persistent.onset else 0
                by_rank[int(columns[places[at]])] = [replace(persistent, onset=onset)]
        return by_rank

    def _series(self, seconds: Floats) -> tuple[Floats, Ints]:
        """(T, k) seconds at the usual pace of the columns known in most steps, and their indices.
        Unknown steps get the usual value of their rank."""
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
