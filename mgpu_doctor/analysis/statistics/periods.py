"""Does something come back at a regular distance, and how likely is that by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.cells import Ints

MOST_GAPS = 0.75
"""Share of the gaps that must be alike for a period to be told."""
TOLERANCE = 0.05
"""Gaps alike differ by this share of the period at most (what comes every N seconds drifts)."""


@dataclass(frozen=True, slots=True)
class Period:
    steps: float
    """Mean of the gaps that are alike."""
    chance: float
    """Of gaps so alike if it came at random moments; 1 where that says nothing."""


def period(starts: Ints) -> Period | None:
    """The period of what begins at these step numbers (ascending); None where it has none.

    At random moments gaps are geometrically distributed, which tells how often one is within the
    tolerance by chance. One gap sets the median and proves nothing.
    """
    gaps = np.diff(starts)
    if len(gaps) < 2:
        return None
    middle = float(np.median(gaps))
    tolerance = math.floor(TOLERANCE * middle)
    alike = np.abs(gaps - middle) <= tolerance
    if alike.mean() < MOST_GAPS:
        return None
    never = 1 - 1 / middle
    single = never ** (middle - tolerance - 1) - never ** (middle + tolerance)
    chance = tail_bound(int(alike.sum()) - 1, len(gaps) - 1, single)
    return Period(float(gaps[alike].mean()), chance)


def tail_bound(hits: int, trials: int, share: float) -> float:
    """Upper bound of the chance of `hits` or more in `trials`, each with `share` (Chernoff)."""
    if trials <= 0 or share >= 1 or hits <= share * trials:
        return 1.0
    rate = hits / trials
    distance = rate * math.log(rate / share)
    if rate < 1:
        distance += (1 - rate) * math.log((1 - rate) / (1 - share))
    return math.exp(-trials * distance)
