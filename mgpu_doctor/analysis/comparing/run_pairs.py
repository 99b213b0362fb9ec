"""Two runs: how much longer one takes for the same work, and whether noise explains it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.analysis.comparing.compared_run import (
    SAMPLES,
    STEPS,
    TOKENS,
    Run,
)
from mgpu_doctor.analysis.comparing.step_time_noise import Interval, ratio
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS


class Change(str, Enum):
    """The second run compared with the first. NONE: no difference beyond noise."""

    FASTER = "faster"
    SLOWER = "slower"
    NONE = "no difference shown"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Pair:
    """Ratios of time for the same work, second / first."""

    first: int
    second: int
    """Places among the runs."""
    unit: str
    """Unit of the work: `samples`, `tokens`, or `steps` if a step's work is unknown."""
    whole: Interval | None
    """Ratio by the mean step, including pauses: the duration of the job."""
    usual: Interval | None
    """Ratio by the median step."""
    reason: str | None = None
    """Why these are None."""

    @property
    def decided(self) -> Interval | None:
        """The measure that shows a difference: whole time, else the usual step; None: neither."""
        return next((pace for pace in (self.whole, self.usual) if pace and pace.shown), None)

    @property
    def change(self) -> Change:
        if self.whole is None:
            return Change.UNKNOWN
        shown = self.decided
        if shown is None:
            return Change.NONE
        return Change.SLOWER if shown.ratio > 1 else Change.FASTER

    def slower_by_more_than(self, limit: float) -> bool:
        """Whether even the least that the intervals leave is a larger share (0.05: 5 %)."""
        return any(pace is not None and pace.low > 1 + limit for pace in (self.whole, self.usual))


def unit_of(runs: Sequence[Run]) -> str:
    """The unit in which all runs count their work."""
    for unit in (SAMPLES, TOKENS):
        if all(run.work.of(unit) for run in runs):
            return unit
    return STEPS


def pair(runs: Sequence[Run], first: int, second: int, unit: str) -> Pair:
    """The second against the first."""
    reference, other = runs[first], runs[second]
    done, does = reference.work.of(unit), other.work.of(unit)
    scale = done / does if done and does else 1.0
    whole, usual = (
        ratio(reference.mean, other.mean, scale),
        ratio(reference.median, other.median, scale),
    )
    reason = None
    if whole is None:
        few = min(reference.steps, other.steps)
        reason = (
            f"{few} steps after warm-up are too few to separate noise from a difference; "
            f"{LEAST_STEPS} decide at the earliest"
        )
    return Pair(first, second, unit, whole, usual, reason)
