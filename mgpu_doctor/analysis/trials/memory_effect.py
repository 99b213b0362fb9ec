"""How much memory a treatment or another batch saves, and how sure that is, from runs in the order
A B B A. Pure.

The statistics are those of step times (`paired_effect`): the logarithm of each run's peak, and the
differences between equal runs as the noise. A peak is one number, so a run has no noise of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.comparing.step_time_noise import Level
from mgpu_doctor.analysis.trials.paired_effect import Block, Saving, estimate_saving, pool_noise

Peaks = tuple[int, int, int, int]
"""Bytes of four runs in the order A B B A."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Peak memory of the rank with the most, over equal runs, in bytes."""

    bytes: int
    """The mean of the runs."""
    spread: int | None
    """Standard deviation between the runs; None: there is one run."""
    runs: int


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """Peak memory per rank before and after, and the share that is saved."""

    before: PeakMemory
    after: PeakMemory
    saved: Saving


def compare_memory(
    blocks: Sequence[Peaks], plain: Sequence[int], looks: int = 1
) -> MemoryChange | None:
    """The memory of the runs as they were, `plain`, and of those in the middle of the blocks, whose
    outer runs are among the others. `looks`: how often a decision is made at most. None: there is
    no block, or fewer than two equal runs."""
    treated = [peak for block in blocks for peak in block[1:3]]
    levels = [[_level(peak) for peak in block] for block in blocks]
    noise = pool_noise([_level(peak) for peak in plain], [(b, c) for _, b, c, _ in levels])
    if not blocks or noise is None:
        return None
    saved = estimate_saving([Block(*block) for block in levels], noise, looks)
    return MemoryChange(_summarize(plain), _summarize(treated), saved)


def _level(peak: int) -> Level:
    return Level(float(max(1, peak)), None, 1.0)


def _summarize(peaks: Sequence[int]) -> PeakMemory:
    """Without `statistics`, whose exact fractions take longer than the rest of a verdict."""
    count, mean = len(peaks), sum(peaks) / len(peaks)
    squares = math.fsum((peak - mean) ** 2 for peak in peaks)
    spread = round(math.sqrt(squares / (count - 1))) if count > 1 else None
    return PeakMemory(round(mean), spread, count)
