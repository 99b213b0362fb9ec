"""A batch that is larger than any so far: how much memory it will take, and how soon it may come.

The peak is a straight line over the size of the batch: what a step allocates beside activations
does not depend on it, and activations of a batch are so many bytes a sample or token (measured
within 0.3 %: docs/plan.md). Peaks can only be read as the highest so far, so the line is laid
through the moments at which the largest batch so far and the highest peak so far rose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from mgpu_doctor.analysis.steps.align import Floats

LEAST_RUNGS = 5
LEAST_LOADS = 4
"""Different batch sizes among them."""
SPAN = 0.2
"""Of the largest batch, by which they must differ: a line through a heap of points points
anywhere."""
EXPLAINED = 0.95
"""Of the rungs' variance that the line must explain."""
MASKED = 0.05
"""Of the whole climb. What lies so near the first rung may have been reached by something else
before: loading, the first step, the launcher whose peak a process begins with."""
LEAST_BATCHES = 150
TAIL = 0.1
"""The largest batches by which larger ones are foretold, as a share."""
BOUND = 3
"""As often as that the largest size must have come to be taken for a bound (`max_length`)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes over samples or tokens of a step."""

    base: float
    slope: float
    rungs: int
    _middle: float
    _spread: float
    """Sum of squares of the loads about their mean."""
    _error: float
    """Standard deviation of what is left."""

    def peak(self, load: float) -> float:
        return self.base + self.slope * load

    def either_way(self, load: float) -> float:
        """Half of the interval in which the peak of one such batch lies by 95 %."""
        free = self.rungs - 2
        quantile = 1.96 + 2.37 / free + 3.6 / free**2  # Student's, within 1 % from 3 on
        far = (load - self._middle) ** 2 / self._spread
        return quantile * self._error * sqrt(1 + 1 / self.rungs + far)

    def full(self, capacity: float) -> float | None:
        """The smallest load whose peak lies above `capacity` by the interval's lower end; None:
        no load does for sure."""
        low = max(0.0, (capacity - self.base) / self.slope)
        high = low
        for _ in range(40):
            high = max(1.0, 2 * high)
            if self.peak(high) - self.either_way(high) > capacity:
                break
        else:
            return None
        for _ in range(60):
            middle = (low + high) / 2
            over = self.peak(middle) - self.either_way(middle) > capacity
            low, high = (low, middle) if over else (middle, high)
        return high


def line(loads: Sequence[float], peaks: Sequence[float], least: float) -> Line | None:
    """Through rungs in their order; None: peaks do not follow the batches for sure, or by less
    than `least` bytes."""
    if len(peaks) < LEAST_RUNGS:
        return None
    x, y = np.asarray(loads, dtype=np.float64), np.asarray(peaks, dtype=np.float64)
    seen = y > y[0] + MASKED * (y[-1] - y[0])
    x, y = x[seen], y[seen]
    if len(x) < LEAST_RUNGS or len(np.unique(x)) < LEAST_LOADS:
        return None
    if x[0] <= 0 or x[-1] - x[0] < SPAN * x[-1] or y[-1] - y[0] < least:
        return None
    middle, spread = float(x.mean()), float(((x - x.mean()) ** 2).sum())
    slope = float(((x - middle) * (y - y.mean())).sum()) / spread
    base = float(y.mean()) - slope * middle
    left = float(((y - base - slope * x) ** 2).sum())
    whole = float(((y - y.mean()) ** 2).sum())
    if slope <= 0 or left > (1 - EXPLAINED) * whole:
        return None
    return Line(base, slope, len(x), middle, spread, sqrt(left / (len(x) - 2)))


def chance(loads: Floats, beyond: float) -> float | None:
    """Of one batch to be larger than `beyond`, where this is rarer than `TAIL`: the generalized
    Pareto distribution of the largest ones, by probability-weighted moments (Hosking and Wallis,
    Technometrics 29, 1987), never heavier than an exponential one. 0: there is a bound. None:
    too few batches, or they do not vary."""
    known = np.sort(loads[loads > 0])
    count = len(known)
    if count < LEAST_BATCHES or known[0] == known[-1]:
        return None
    if int((known == known[-1]).sum()) >= BOUND:
        return 0.0 if beyond >= known[-1] else float((known > beyond).mean())
    if beyond < known[int(count * (1 - TAIL))]:
        return float((known > beyond).mean())
    least = float(known[int(count * (1 - TAIL))])
    excess = known[known > least] - least
    shape, scale = _pareto(excess)
    share, far = len(excess) / count, (beyond - least) / scale
    if shape == 0:
        return share * exp(-far)
    left = 1 + shape * far
    return share * float(left ** (-1 / shape)) if left > 0 else 0.0


def _pareto(excess: Floats) -> tuple[float, float]:
    """Shape (0: exponential; below: there is an end) and scale. `excess` ascends."""
    places = (np.arange(1, len(excess) + 1) - 0.35) / len(excess)
    mean, weighted = float(excess.mean()), float((excess * (1 - places)).mean())
    apart = mean - 2 * weighted
    shape = 2 - mean / apart if apart > 0 else 0.0
    if shape >= 0 or apart <= 0:
        return 0.0, mean
    return shape, 2 * mean * weighted / apart
