"""The stages of a pipeline: how much each works, and what equal stages would save.

The first of m micro-batches passes all stages; the others follow at the pace of the slowest stage.
A step takes (sum of the stages' work + (m - 1) x the most work of a stage) / m. For p equal stages
that is (m + p - 1) x the work per micro-batch (GPipe, arXiv 1811.06965; 1F1B takes the same time,
PipeDream-Flush, arXiv 2006.09503). With v stages per rank, interleaved, the bubble is v times
smaller, as if there were m v micro-batches (arXiv 2104.04473). A schedule that fills the bubble
leaves the work of the slowest stage. Time outside the stages comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD, TRANSFER

from mgpu_doctor.analysis.statistics.significance import persistent
from mgpu_doctor.analysis.steps.step_alignment import Floats, Joined
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.analysis.structure.job_structure import Structure

WORK = (TRANSFER, FORWARD, BACKWARD)
"""Phases that pass through the pipeline, micro-batch by micro-batch."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A pipeline's stages. Times are median seconds per step."""

    ranks: tuple[tuple[int, ...], ...]
    """Stage -> its ranks."""
    work: tuple[float, ...]
    """Stage -> its own forward and backward work, all micro-batches together."""
    slowest: int
    """Stage with the most work."""
    steady: bool
    """Whether it has the most work from the start, significantly and in most steps."""
    positive: float
    """Share of steps in which it worked longer than the stages' mean."""
    micro_batches: int | None
    passes: float | None
    """Parts in which a rank does its work: `structure.Structure`."""
    bubble: float
    """Mean share of the step, 0..1, in which the ranks wait for others."""
    step_seconds: float
    saved: float | None
    """Share of the step time, 0..1, that equal stages save; None: micro-batches unknown."""
    saved_like_others: float | None
    """The same if the slowest stage worked like the median of the others."""
    saved_by_more: float | None
    """The same of twice as many micro-batches, the stages as they are."""

    @property
    def mean(self) -> float:
        """Work of a stage if all were equal."""
        return sum(self.work) / len(self.work)

    @property
    def imbalance(self) -> float:
        """Excess work of the slowest stage over the mean, as a share of the mean."""
        return self.work[self.slowest] / self.mean - 1 if self.mean > 0 else 0.0

    @property
    def bubble_of_equal(self) -> float | None:
        """The bubble by the formula for equal stages."""
        if self.passes is None:
            return None
        behind = len(self.ranks) - 1
        return behind / (self.passes + behind)


def stage_work(joined: Joined, structure: Structure) -> Floats:
    """(T, P) seconds of work of each stage: that of its slowest rank, for which the others wait;
    NaN: no rank of it was compared."""
    phases = [np.nan_to_num(joined.phases[:, :, phase]) for phase in WORK]
    work = np.sum(phases, axis=0)
    columns = [
        [joined.ranks.index(rank) for rank in stage if rank in joined.ranks]
        for stage in structure.stages
    ]
    return np.stack(
        [
            np.max(work[:, ranks], axis=1) if ranks else np.full(len(joined.steps), np.nan)
            for ranks in columns
        ],
        axis=1,
    )


def pipeline_seconds(work: Floats, passes: float) -> Floats:
    """(T) seconds of a pipeline with (T, P) work of stages, done in `passes` parts."""
    slowest = work.max(axis=1)
    return np.asarray(slowest + (work.sum(axis=1) - slowest) / passes)


def measure_stages(joined: Joined, attribution: Attribution, structure: Structure) -> Stages | None:
    """The stages' work; None without a pipeline, or if a stage's work was not measured."""
    if structure.alike:
        return None
    work = stage_work(joined, structure)
    levels = np.median(work, axis=0)
    step = joined.step_seconds
    if np.isnan(levels).any() or step <= 0:
        return None
    slowest = int(levels.argmax())
    beyond = work[:, slowest] - work.mean(axis=1)
    slow = persistent(beyond, comparisons=len(levels), floor=0.0)
    passes = structure.passes
    saved = like_others = more = None
    if passes is not None:
        equal = np.repeat(work.mean(axis=1, keepdims=True), len(levels), axis=1)
        equalized = work.copy()
        equalized[:, slowest] = np.median(np.delete(work, slowest, axis=1), axis=1)
        now = pipeline_seconds(work, passes)
        saved = _share(now - pipeline_seconds(equal, passes), step)
        like_others = _share(now - pipeline_seconds(equalized, passes), step)
        more = _share(now - pipeline_seconds(work, 2 * passes), step)
    return Stages(
        ranks=structure.stages,
        work=tuple(float(level) for level in levels),
        slowest=slowest,
        steady=slow is not None and slow.onset == 0,
        positive=float(np.mean(beyond > 0)),
        micro_batches=structure.micro_batches,
        passes=passes,
        bubble=float(np.nanmean(attribution.in_collectives) / step),
        step_seconds=step,
        saved=saved,
        saved_like_others=like_others,
        saved_by_more=more,
    )


def _share(seconds: Floats, step: float) -> float:
    return min(1.0, max(0.0, float(np.median(seconds)) / step))
