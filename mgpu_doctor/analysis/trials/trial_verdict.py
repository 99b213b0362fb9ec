"""The verdict about a treatment: its time, its loss, or why it could not be tried. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from mgpu_doctor.advice.treatment import Effect
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.trials.paired_effect import LEAST_GAIN, Saving

LOSS_TOLERANCE: Mapping[Effect, float] = {
    Effect.NOTHING: 1e-3,
    Effect.ROUNDING: 1e-2,
    Effect.CONVERGENCE: 5e-2,
}
"""Relative difference of the losses up to which they count as equal, where the job's own runs agree
better than that. Choices: the last digits of float32 grow into the third digit within some hundred
steps of training, and those of bfloat16 into the second."""
SPREADS = 2.0
"""Multiple of the job's own spread between runs up to which losses count as equal. A choice: of
equal runs with other seeds, the mean difference varies by less."""


class Verdict(str, Enum):
    """What trials of a treatment showed."""

    HELPS = "helps"
    NO_DIFFERENCE = "no-difference-shown"
    WORSE = "worse"
    CHANGES_LOSS = "changes-the-loss"
    FAILS = "fails"
    """The job crashes, hangs or trains no step with it."""
    DOES_NOT_FIT = "does-not-fit"
    """Nothing in the job could be changed by it."""
    UNTRIED = "untried"
    """There was no time left."""


@dataclass(frozen=True, slots=True)
class LossChange:
    """How far the losses of runs with and without the treatment are apart, relative to the loss."""

    difference: float
    spread: float
    """The same between runs without the treatment."""
    limit: float

    @property
    def is_change(self) -> bool:
        """Whether the difference is beyond what rounding and the job's own spread explain."""
        return not self.difference <= self.limit


def compare_losses(
    plain: Sequence[Floats], treated: Sequence[Floats], effect: Effect
) -> LossChange | None:
    """The losses of the same steps, at least two runs without and one with the treatment; None:
    too few are known, or the job's own loss is not a number.

    Differences are taken step by step: runs with equal seeds and data agree in each step.
    """
    if len(plain) < 2 or not treated:
        return None
    count = min(len(losses) for losses in (*plain, *treated))
    if not count:
        return None
    without = np.stack([losses[:count] for losses in plain])
    with_it = np.stack([losses[:count] for losses in treated])
    scale = float(np.abs(without).mean())
    if not np.isfinite(scale) or scale == 0:
        return None

    def distances(others: Floats) -> Floats:
        """Of each run without the treatment to each of the others."""
        return np.asarray(np.abs(without[:, None] - others).mean(axis=2) / scale)

    apart, spread = float(distances(with_it).mean()), float(distances(without).max())
    return LossChange(apart, spread, max(LOSS_TOLERANCE[effect], SPREADS * spread))


def judge(saved: Saving, loss: LossChange | None) -> Verdict:
    """The verdict about a treatment whose trials ran to their end. `saved`: of what the trials are
    for, step time or memory."""
    if loss is not None and loss.is_change:
        return Verdict.CHANGES_LOSS
    if saved.is_gain:
        return Verdict.HELPS
    return Verdict.WORSE if saved.is_loss else Verdict.NO_DIFFERENCE


def is_settled(saved: Saving) -> bool:
    """Whether another block of runs is not worth its time: the verdict is sure, or the effect is
    too small to matter."""
    return saved.is_gain or saved.is_loss or abs(saved.share) < LEAST_GAIN
