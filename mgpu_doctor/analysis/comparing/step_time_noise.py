"""Confidence intervals of step times and of their ratios, by batch means.

Neighbouring steps are correlated, so n steps contain less than n independent ones. The series is
cut into some long batches, whose averages are nearly independent; their scatter is the error (10 to
30 batches: Schmeiser, "Batch Size Effects in the Analysis of Simulation Output", Operations
Research 30(3), 1982). If even batches are correlated, as when a machine slows down during a run,
the error is widened once more by their lag-one autocorrelation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, autocorrelation
from mgpu_doctor.analysis.steps.step_alignment import Floats

LEAST_BATCHES, MOST_BATCHES = 10, 30
STEPS_A_BATCH = 10
ERROR_RATE = 0.01
"""Equal runs that are reported to differ, as a share of the pairs compared: both intervals of a
pair together, by Bonferroni."""
LEAST_DIFFERENCE = 1e-3
"""A thousandth is no difference to anybody, however sure it is."""
INTERVALS = 2
"""Per pair: one interval of the mean and one of the median step."""
REACH = 1.5
"""Largest bound, as a multiple of the farthest batch's deviation. In simulations that costs no
errors but where a run is no longer than its slow phases; their bounds would be absurd without."""
LEAST_FREEDOM = 3.0
"""Fewer degrees of freedom would make the expansion below meaningless."""


@dataclass(frozen=True, slots=True)
class Level:
    """A step time and how sure it is. `error`: standard error of its logarithm, None: too few
    steps to tell."""

    seconds: float
    error: float | None
    freedom: float

    @property
    def bound(self) -> float | None:
        """Half the width of the interval, as a share of the value."""
        if self.error is None:
            return None
        return math.expm1(quantile(self.freedom) * self.error)


@dataclass(frozen=True, slots=True)
class Interval:
    """How a ratio was measured, and between what it lies but for the error rate."""

    ratio: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the two differ beyond noise."""
        return self.low > 1 + LEAST_DIFFERENCE or self.high < 1 - LEAST_DIFFERENCE

    @property
    def inverse(self) -> Interval:
        return Interval(1 / self.ratio, 1 / self.high, 1 / self.low)


def mean_level(series: Floats) -> Level:
    """The interval of the mean, which decides how long a job takes. `series`: seconds per step."""
    return _level(series, np.mean)


def median_level(series: Floats) -> Level:
    """The interval of the median, the usual step: occasional pauses do not change it."""
    return _level(series, np.median)


def _level(series: Floats, average: Callable[[Floats], np.floating[Any]]) -> Level:
    count = len(series)
    whole = float(average(series))
    if count < LEAST_STEPS or whole <= 0:
        return Level(whole, None, LEAST_FREEDOM)
    number = min(MOST_BATCHES, max(LEAST_BATCHES, count // STEPS_A_BATCH))
    parts = [float(average(part)) for part in np.array_split(series, number)]
    if min(parts) <= 0:
        return Level(whole, None, LEAST_FREEDOM)
    logs = np.log(parts)
    alike = autocorrelation(logs - logs.mean())
    wider = (1 + alike) / (1 - alike)
    freedom = max(LEAST_FREEDOM, number / wider - 1)
    error = math.sqrt(float(logs.var(ddof=1)) * wider / number)
    farthest = float(np.abs(logs - math.log(whole)).max())
    return Level(whole, min(error, REACH * farthest / quantile(freedom)), freedom)


def ratio(first: Level, second: Level, scale: float = 1.0) -> Interval | None:
    """second / first × `scale`; None: one of them has no error. Welch's degrees of freedom."""
    if first.error is None or second.error is None:
        return None
    squares = (first.error**2, second.error**2)
    parts = squares[0] ** 2 / first.freedom + squares[1] ** 2 / second.freedom
    freedom = sum(squares) ** 2 / parts if parts > 0 else first.freedom + second.freedom
    wide = math.exp(quantile(freedom) * math.sqrt(sum(squares)))
    measured = second.seconds / first.seconds * scale
    return Interval(measured, measured / wide, measured * wide)


def quantile(freedom: float) -> float:
    """Student's t at half of what the error rate leaves to one interval: the Gaussian quantile
    with two terms of the Cornish-Fisher expansion."""
    z = NormalDist().inv_cdf(1 - ERROR_RATE / INTERVALS / 2)
    once = (z**3 + z) / 4
    twice = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + once / freedom + twice / freedom**2
