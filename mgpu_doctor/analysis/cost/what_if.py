"""What a step would take without a rank's excess: the gain of a fix; and parallel efficiency.
Pure.

In synchronous training a step ends when the rank with the most own work has finished it and the
data has moved: step = max over ranks of own + communication. Replacing one term and taking the
mean over steps gives the step time without the fault; the noise of all ranks is kept.

Parallel efficiency is the mean time that ranks do useful work, as a share of the run time. It is
the product of load balance (mean / largest useful time of a rank) and communication efficiency
(largest useful time of a rank / run time), each 0..1: the standard metrics of the POP Centre of
Excellence (https://co-design.pop-coe.eu/metrics). Useful is all but time in collectives, so
waiting for data counts as work. One run cannot tell how much faster more ranks would be; `compare`
can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.work_and_wait import Attribution


def saved_without_share(own: Floats, communication: Floats, removed: Floats) -> float:
    """Share of the step time, 0..1, that is saved if `removed` (T, R) seconds were not there; what
    is negative is added."""
    now = step_time(own, communication)
    after = step_time(np.maximum(own - removed, 0), communication)
    return max(0.0, 1 - after / now) if now > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Ideal:
    """A job as it is, and as it would be if no rank ever waited for a slower one."""

    step_seconds: float
    """Mean seconds a step, as measured: the model would have ranks that meet at every few steps
    wait for the slowest of each."""
    ideal_seconds: float
    """The same if every rank always worked like the median rank."""

    @property
    def waste_fraction(self) -> float:
        """Share of the job's time, 0..1, that goes into waiting for whoever is slowest."""
        if self.step_seconds <= 0:
            return 0.0
        return min(1.0, max(0.0, 1 - self.ideal_seconds / self.step_seconds))


def ideal(attribution: Attribution) -> Ideal:
    """Compares the job with one of even ranks. The waste has healthy jitter in it, too: with many
    ranks some rank is late in every step."""
    return Ideal(
        step_seconds=_mean(attribution.own + attribution.standing),
        ideal_seconds=_mean(attribution.typical + attribution.communication),
    )


def step_time(own: Floats, communication: Floats) -> float:
    """Mean seconds a step by the model; steps with unmeasured parts are left out."""
    return _mean(own.max(axis=1) + communication)


def saved_if(own: Floats, communication: Floats, removed: Floats) -> float:
    """Share of the step time, 0..1, that is saved if `removed` (T, R) seconds were not there."""
    now = step_time(own, communication)
    after = step_time(np.maximum(own - removed, 0), communication)
    return max(0.0, 1 - after / now) if now > 0 else 0.0


def saved_fraction(
    attribution: Attribution, slower_by: Mapping[int, float], *, start: int = 0
) -> float:
    """Share of the step time, 0..1, that is saved if each column in `slower_by` did its own work
    that many seconds faster, from step index `start` on."""
    return saved_in_turn(attribution, slower_by, start=start)[-1] if slower_by else 0.0


def saved_in_turn(
    attribution: Attribution, slower_by: Mapping[int, float], *, start: int = 0
) -> list[float]:
    """The same after mending the first of them, the first two, and so on."""
    own, communication = attribution.own[start:], attribution.communication[start:]
    columns, seconds = list(slower_by), np.array(list(slower_by.values()))
    others = np.ones(own.shape[1], dtype=bool)
    others[columns] = False
    rest = own.max(axis=1, where=others, initial=0.0)
    slow = own[:, columns]
    mended = np.maximum(slow - seconds, 0)
    now = _mean(own.max(axis=1) + communication)
    saved = []
    for done in range(1, len(columns) + 1):
        parts = (rest[:, None], mended[:, :done], slow[:, done:])
        longest = np.concatenate(parts, axis=1).max(axis=1)
        saved.append(max(0.0, 1 - _mean(longest + communication) / now) if now > 0 else 0.0)
    return saved


def saved_without(joined: Joined, attribution: Attribution, phase: int) -> float:
    """Share of the step time, 0..1, that is saved if no rank spent time in a phase."""
    now = step_time(attribution.own, attribution.communication)
    longest = np.zeros(len(attribution.own))
    for column in range(attribution.own.shape[1]):
        seconds = joined.cells.phase(phase, column)
        if not np.isfinite(seconds).all():
            seconds = np.nan_to_num(seconds)
        np.maximum(longest, attribution.own[:, column] - seconds, out=longest)
    return max(0.0, 1 - _mean(longest + attribution.communication) / now) if now > 0 else 0.0


def _mean(values: Floats) -> float:
    return float(np.nanmean(values, dtype=np.float64))
