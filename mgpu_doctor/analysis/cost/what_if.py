"""What a step would take without a fault, and how efficiently the ranks work together. Pure.

In synchronous training a step ends when the rank with the most own work has finished and the data
has moved: step = max over ranks of own work + communication. Replacing one term and taking the mean
over steps gives the step time without the fault. The noise of all ranks is kept.

Parallel efficiency is the mean time that ranks do useful work, as a share of the run time. It is
the product of load balance (mean / largest useful time of a rank) and communication efficiency
(largest useful time of a rank / run time), each 0..1: the standard metrics of the POP Centre of
Excellence (https://co-design.pop-coe.eu/metrics). Useful is all but time in collectives, so
waiting for data counts as work. One run cannot show how much faster more ranks would be; `compare`
can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.statistics.medians import column_blocks
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.work_and_wait import Attribution


def saved_if_removed(own: Floats, communication: Floats, removed: Floats) -> float:
    """Share of the step time, 0..1, saved if `removed` (T, R) seconds of own work were gone.
    Negative values add work."""
    now = step_time(own, communication)
    after = step_time(np.maximum(own - removed, 0), communication)
    return max(0.0, 1 - after / now) if now > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Ideal:
    """A job as it is, and as it would be if no rank ever waited for a slower one."""

    step_seconds: float
    """Mean seconds per step, as measured. (The model would overestimate it for ranks that
    synchronize only every few steps.)"""
    ideal_seconds: float
    """Mean seconds per step if every rank always worked like the median rank."""

    @property
    def waste_fraction(self) -> float:
        """Share of the job's time, 0..1, spent waiting for the slowest rank of each step."""
        if self.step_seconds <= 0:
            return 0.0
        return min(1.0, max(0.0, 1 - self.ideal_seconds / self.step_seconds))


def ideal(attribution: Attribution) -> Ideal:
    """Compares the job with one of equally fast ranks. The waste includes healthy jitter: with many
    ranks, some rank is late in every step."""
    waited = [
        attribution.in_collectives_of(columns).sum(axis=1, dtype=np.float64)
        for columns in column_blocks(attribution.own)
    ]
    waits = np.sum(waited, axis=0) / attribution.own.shape[1]
    return Ideal(
        step_seconds=_mean(attribution.own.mean(axis=1, dtype=np.float64) + waits),
        ideal_seconds=_mean(attribution.typical + attribution.communication),
    )


def step_time(own: Floats, communication: Floats) -> float:
    """Mean seconds per step by the model; steps with unmeasured parts are left out."""
    return _mean(own.max(axis=1) + communication)


def saved_if_faster(
    attribution: Attribution, slower_by: Mapping[int, float], *, start: int = 0
) -> float:
    """Share of the step time, 0..1, saved if each column in `slower_by` did its own work that many
    seconds faster, from step index `start` on."""
    return saved_in_turn(attribution, slower_by, start=start)[-1] if slower_by else 0.0


def saved_in_turn(
    attribution: Attribution, slower_by: Mapping[int, float], *, start: int = 0
) -> list[float]:
    """The share saved by fixing the first column, the first two columns, and so on."""
    own, communication = attribution.own[start:], attribution.communication[start:]
    columns, seconds = list(slower_by), np.array(list(slower_by.values()))
    others = np.ones(own.shape[1], dtype=bool)
    others[columns] = False
    rest = own.max(axis=1, where=others, initial=0.0)
    slow = own[:, columns]
    fixed = np.maximum(slow - seconds, 0)
    now = _mean(own.max(axis=1) + communication)
    saved = []
    for done in range(1, len(columns) + 1):
        parts = (rest[:, None], fixed[:, :done], slow[:, done:])
        longest = np.concatenate(parts, axis=1).max(axis=1)
        saved.append(max(0.0, 1 - _mean(longest + communication) / now) if now > 0 else 0.0)
    return saved


def saved_without_phase(joined: Joined, attribution: Attribution, phase: int) -> float:
    """Share of the step time, 0..1, saved if no rank spent time in a phase."""
    now = step_time(attribution.own, attribution.communication)
    longest = np.zeros(len(attribution.own))
    for chunk in joined.cells.chunks:
        rest = attribution.own.T[chunk.places] - np.nan_to_num(chunk[phase])
        np.maximum(longest, rest.max(axis=0), out=longest)
    return max(0.0, 1 - _mean(longest + attribution.communication) / now) if now > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Efficiency of the ranks together; shares 0..1 of the compared steps."""

    load_balance: float
    """Lowered by ranks that always have more work than others."""
    communication: float
    """Lowered by moving data, and by imbalance that changes from step to step."""

    @property
    def parallel(self) -> float:
        """Share of the ranks' time spent on own work."""
        return self.load_balance * self.communication


def efficiency(attribution: Attribution) -> Efficiency | str:
    """Efficiency over the steps in which every rank's own work is known, or why it is unknown."""
    known = ~np.isnan(attribution.typical)[:, None]
    work = attribution.own.sum(axis=0, where=known, dtype=np.float64)
    waiting = attribution.by_column(
        lambda columns: attribution.in_collectives_of(columns).sum(
            axis=0, where=known, dtype=np.float64
        )
    )
    run_time, most = float((work + waiting).max()), float(work.max())
    if most <= 0:
        return "no rank did any work of its own in the compared steps"
    return Efficiency(load_balance=float(work.mean()) / most, communication=most / run_time)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values, dtype=np.float64))
