"""The rank that slows down the others, by traces: it waits least in collectives, by more than
chance. If the ranks are equal, none is named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.statistics.significance import (
    FALSE_ALARMS,
    estimate,
    last_so_often,
    limit,
    signed_rank,
)
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.traces.joined_collectives import Waits

LEAST_UNITS = 5
"""Fewer steps decide nothing."""
FLOOR = 0.05
"""Least share of the step: a trace holds few steps, so smaller costs are left to recordings."""
MOST_UNITS = 0.9
"""Share of the steps in which the others must wait longer."""
INDEPENDENT = 0.1
"""Lag-one correlation up to which steps count as tries of their own. Simulated healthy jobs of 2 to
8 ranks and 8 to 20 steps with heavy-tailed noise of 5 and 15 % gave no alarm in 4,500 where the
noise of steps is independent, 11 where it is correlated by 0.3, and 31 by 0.5: few steps cannot
show such a correlation."""
RUNNER_UP = 0.5
"""If another rank is at least half as late, no single rank is blamed."""


@dataclass(frozen=True, slots=True)
class Late:
    """Seconds a unit (a step, mostly)."""

    rank: int
    wait: float
    wait_of_others: float
    """Median."""
    saved: float
    """Seconds saved per unit if it worked as long as the next slowest rank."""
    positive: float
    """Share of the units in which it waited less than the median of the others."""
    units: int
    unit: str


def find_late(waits: Waits, step_seconds: float) -> Late | None:
    """`step_seconds`: mean of a unit."""
    units = len(waits.waits)
    if units < LEAST_UNITS or step_seconds <= 0:
        return None
    means = waits.waits.mean(axis=0)
    first = int(np.argmin(means))
    others = np.delete(waits.waits, first, axis=1)
    excess = np.median(others, axis=1) - waits.waits[:, first]
    positive = float(np.mean(excess > 0))
    usual = float(np.median(excess))
    if usual < FLOOR * step_seconds or positive < MOST_UNITS or not _is_sure(waits, first, excess):
        return None
    next_to_it = float(np.delete(means, first).min() - means[first])
    if next_to_it < RUNNER_UP * usual:
        return None
    return Late(
        rank=waits.ranks[first],
        wait=float(means[first]),
        wait_of_others=float(np.median(np.delete(means, first))),
        saved=next_to_it,
        positive=positive,
        units=units,
        unit=waits.unit,
    )


def _is_sure(waits: Waits, first: int, excess: Floats) -> bool:
    """Beyond chance by size, by signs and ranks, or by how often it came last: with few steps one
    of these can decide where the others cannot."""
    ranks = len(waits.ranks)
    mean = estimate(excess)
    if mean.mean >= limit(ranks, mean.freedom) * mean.error:
        return True
    if _neighbours_alike(excess) > INDEPENDENT:
        return False
    times = int((waits.waits.argmin(axis=1) == first).sum())
    chance = min(signed_rank(excess), last_so_often(times, len(excess), ranks))
    return chance * ranks <= FALSE_ALARMS


def _neighbours_alike(series: Floats) -> float:
    centred = np.asarray(series - series.mean())
    squares = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / squares if squares > 0 else 0.0
