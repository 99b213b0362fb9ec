"""TODO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.case.model import Rank

SMOOTHED = 10
"""Losses of so many steps are averaged: those of single batches jump."""


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """From the first step on, warm-up and all."""

    seconds: Floats
    """Since the first step began, at the end of each step from the `SMOOTHED`th on."""
    mean: Floats
    """Of the newest `SMOOTHED` losses then, all ranks together."""

    def seconds_to(self, target: float) -> float | None:
        reached = self.mean <= target
        return float(self.seconds[int(reached.argmax())]) if reached.any() else None


def losses_of(ranks: Sequence[Rank]) -> Losses | None:
    """Of the ranks that tell a loss in each step (of a pipeline the last stage); None where none
    does, or where the first steps are no longer on record."""
    told = [
        rank.steps for rank in ranks if len(rank.steps) and np.isfinite(rank.steps["loss"]).all()
    ]
    count = min((len(records) for records in told), default=0)
    if count < SMOOTHED or any(records["step"][0] != 0 for records in told):
        return None
    losses = np.zeros(count)
    for records in told:
        losses += records["loss"][:count].astype(np.float64) / len(told)
    first = told[0][:count]
    began = first["end_ns"][0] - first["wall_ns"][0]
    seconds = (first["end_ns"] - began) * 1e-9
    window = np.full(SMOOTHED, 1 / SMOOTHED)
    return Losses(seconds[SMOOTHED - 1 :], np.convolve(losses, window, "valid"))


def target_of(all_losses: Sequence[Losses | None]) -> float | None:
    """The least loss that every run comes down to; None where one tells none."""
    known = [one for one in all_losses if one is not None]
    if len(known) < len(all_losses):
        return None
    return max(float(one.mean.min()) for one in known)
