"""Does a series grow steadily, how fast, and when will it be full.

The slope is Theil and Sen's (median of the slopes of all pairs) with Sen's confidence interval
(Journal of the American Statistical Association 63, 1968); whether there is one at all is Mann's
and Kendall's test. Both are robust: spikes, steps down after garbage collection and heavy tails do
not move them. What grows into a cache and then stays is told from what grows for ever by asking
each third of the series; what grows ever more slowly (an allocator that cuts up its memory for
sizes that vary, seen with a mixture of experts) by comparing the last with the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.align import Floats

MOST_POINTS = 200
"""All pairs of 200 points take 2 ms; longer series are thinned evenly."""
LEAST_POINTS = 30
SURE = 4.0
"""Standard deviations of Mann's and Kendall's statistic: with 200 healthy series of each kind there
was no false alarm."""
CONFIDENCE = 1.96
"""Standard deviations of the slope's interval: 95 %."""
LASTING = 0.25
"""Of the whole slope, that each third must have."""
THIRDS = 3
STEADY = 0.7
"""Of the first third's slope, that the last must have: less will come to rest. An exponential
approach to a limit has as much up to 41 % of its way."""


@dataclass(frozen=True, slots=True)
class Growth:
    """In the unit of the values by the unit of the places; `low` and `high` bound it by 95 %."""

    slope: float
    low: float
    high: float
    last: float
    """Where the line stands at the end."""
    places: float
    """From the first to the last."""

    @property
    def sure(self) -> float:
        """What it has grown at least."""
        return self.low * self.places

    def until(self, full: float) -> float | None:
        """Places from the end until the line reaches `full`; None: never."""
        return max(0.0, full - self.last) / self.slope if self.slope > 0 else None


def growth(places: Floats, values: Floats) -> Growth | None:
    """None: it does not grow, or not for sure, or not throughout. `places` ascend."""
    known = np.isfinite(values)
    places, values = _thinned(places[known]), _thinned(values[known])
    if len(values) < LEAST_POINTS or places[-1] <= places[0]:
        return None
    slopes = _slopes(places, values)
    count = len(values)
    spread = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if _concordance(values) / spread <= SURE:
        return None
    slope = float(np.median(slopes))
    reach = CONFIDENCE * spread
    low = float(slopes[max(0, int((len(slopes) - reach) / 2))])
    high = float(slopes[min(len(slopes) - 1, int((len(slopes) + reach) / 2))])
    parts = zip(np.array_split(places, THIRDS), np.array_split(values, THIRDS), strict=True)
    each = [float(np.median(_slopes(*part))) for part in parts]
    if low <= 0 or min(each) < LASTING * slope or each[-1] < STEADY * each[0]:
        return None
    intercept = float(np.median(values - slope * places))
    last = intercept + slope * float(places[-1])
    return Growth(slope, low, high, last, float(places[-1] - places[0]))


def _thinned(values: Floats) -> Floats:
    if len(values) <= MOST_POINTS:
        return values
    chosen: Floats = values[np.linspace(0, len(values) - 1, MOST_POINTS).astype(int)]
    return chosen


def _slopes(places: Floats, values: Floats) -> Floats:
    """Of all pairs, ascending."""
    first, second = np.triu_indices(len(values), 1)
    apart = places[second] - places[first]
    good = apart > 0
    slopes: Floats = np.sort((values[second] - values[first])[good] / apart[good])
    return slopes


def _concordance(values: Floats) -> float:
    """Pairs that rise, less those that fall, corrected for continuity."""
    first, second = np.triu_indices(len(values), 1)
    sum_ = float(np.sign(values[second] - values[first]).sum())
    return sum_ - float(np.sign(sum_))
