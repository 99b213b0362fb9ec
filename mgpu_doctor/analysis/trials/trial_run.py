"""What one short run of a trial measured, over the same steps as all other runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from mgpu_doctor.analysis.comparing.compared_run import ON_HOST, Memory, memory_of
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.case.model import Case, Rank


class Shortfall(str, Enum):
    """Why a run measured nothing."""

    NO_STEPS = "no-steps"
    """No rank recorded a step."""
    TOO_SHORT = "too-short"
    """Fewer steps after the warm-up than a trial needs."""
    UNEVEN = "uneven"
    """Ranks have no steps in common."""


@dataclass(frozen=True, slots=True, eq=False)
class TrialRun:
    """A run's steps from `first` on."""

    first: int
    seconds: Floats
    """Duration of each step, the mean of the ranks."""
    losses: Floats | None
    """Loss of each step, the mean of the ranks that report it; infinite: it was no number. None:
    none reports it."""
    memory_bytes: int | None
    """Peak memory of the rank with the most; None: unknown."""
    is_gpu_memory: bool = False
    """Whether that is memory of a GPU, not of the host."""


def measure_run(
    case: Case, first: int, most: int, least: int = LEAST_STEPS
) -> TrialRun | Shortfall:
    """The steps from number `first` on, `least` to `most`, that all ranks recorded without a gap.

    Durations run from the end of one step to the end of the next, so that nothing between steps is
    lost.
    """
    ranks = [rank for rank in case.ranks if len(rank.steps)]
    if not ranks:
        return Shortfall.NO_STEPS
    if any(rank.steps["step"][-1] < first + least - 1 for rank in ranks):
        return Shortfall.TOO_SHORT
    runs = [_steps_of(rank, first, most) for rank in ranks]
    count = min(len(seconds) for seconds, _ in runs)
    if count < least:
        return Shortfall.UNEVEN
    reported = [losses[:count] for _, losses in runs if not np.isnan(losses[:count]).all()]
    memory = memory_of(case)
    is_gpu_memory = isinstance(memory, Memory) and memory.kind != ON_HOST
    peaks = [memory.most] if isinstance(memory, Memory) else []
    return TrialRun(
        first=first,
        seconds=np.mean([seconds[:count] for seconds, _ in runs], axis=0),
        losses=np.mean(reported, axis=0) if reported else None,
        memory_bytes=max([*peaks, *([] if is_gpu_memory else _host_peaks(ranks))], default=None),
        is_gpu_memory=is_gpu_memory,
    )


def _host_peaks(ranks: Sequence[Rank]) -> list[int]:
    """Peaks of resident memory as the kernel counts them: samples of a short run miss them."""
    histories = (rank.metadata.memory_peaks.history("host") for rank in ranks)
    return [history[-1].peak for history in histories if history]


def _steps_of(rank: Rank, first: int, most: int) -> tuple[Floats, Floats]:
    """Durations and losses of a rank's steps from `first` on, up to the first gap; the step before
    `first` must be on record, because it ends where the first one begins."""
    numbers = rank.steps["step"].astype(np.int64)
    wanted = (numbers >= first - 1) & (numbers < first + most)
    ends, losses = rank.steps["end_ns"][wanted], rank.steps["loss"][wanted]
    whole = np.flatnonzero(numbers[wanted] != first - 1 + np.arange(len(ends)))
    count = int(whole[0]) if len(whole) else len(ends)
    seconds = np.diff(ends[:count].astype(np.int64)).astype(np.float64) * 1e-9
    return seconds, losses[1:count].astype(np.float64)
