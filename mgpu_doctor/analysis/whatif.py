"""What a step would take if: the cost of a finding is what mending it saves.

In synchronous training a step ends when the rank with the most own work has done it and the data
has moved: step = max over ranks of own + communication. Replacing one term and taking the mean
over steps gives the step time without the fault, noise of all ranks kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mgpu_doctor.analysis.align import Floats, Joined
from mgpu_doctor.analysis.attribution import Attribution


def step_time(own: Floats, communication: Floats) -> float:
    """Mean seconds a step by the model; steps with unmeasured parts are left out."""
    return float(np.nanmean(np.max(own, axis=1) + communication))


def saved_fraction(
    attribution: Attribution, slower_by: Mapping[int, float], *, start: int = 0
) -> float:
    """Share of the step time, 0..1, that is saved if each column in `slower_by` did its own work
    that many seconds faster, from step index `start` on."""
    own, communication = attribution.own[start:], attribution.communication[start:]
    now = step_time(own, communication)
    mended = own.copy()
    for column, seconds in slower_by.items():
        mended[:, column] = np.maximum(mended[:, column] - seconds, 0)
    return max(0.0, 1 - step_time(mended, communication) / now) if now > 0 else 0.0


def saved_without(joined: Joined, attribution: Attribution, phase: int) -> float:
    """Share of the step time, 0..1, that is saved if no rank spent time in a phase."""
    now = step_time(attribution.own, attribution.communication)
    mended = np.maximum(attribution.own - np.nan_to_num(joined.phases[:, :, phase]), 0)
    return max(0.0, 1 - step_time(mended, attribution.communication) / now) if now > 0 else 0.0


def ideal_step_time(attribution: Attribution) -> float:
    """Mean seconds a step if every rank always worked like the median rank."""
    median = np.median(attribution.own, axis=1)
    return float(np.nanmean(median + attribution.communication))
