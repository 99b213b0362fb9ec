"""Which of many ranks has become slower than it was, or than the others are, and since when.

Many ranks tell what is usual: how much a step varies, how alike neighbouring steps are, how far
healthy ranks differ for good. So a rank need not show all that by itself, and few steps decide.
For every length n the newest n steps of a rank are held against what its earlier steps and the
other ranks let expect (the best linear prediction of a random effect; Robinson 1991). The error of
that difference is the larger of what the noise of a step implies and of what the ranks show among
each other at this length, which also knows slow drifts. The limit is that of a likelihood-ratio
scan that is looked at after every step (Siegmund & Venkatraman 1995), so looking often costs
nothing. Measured: benchmarks/detection.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mgpu_doctor.analysis.statistics.medians import column_medians
from mgpu_doctor.analysis.steps.attribution import REFERENCE
from mgpu_doctor.analysis.steps.cells import Floats, Ints

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
