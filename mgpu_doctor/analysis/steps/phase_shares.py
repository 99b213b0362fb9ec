"""Measures how each rank spends its time, without comparing ranks: shares of phases, coverage, long
steps, waits at the begin of epochs. Pure. `measures` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import INPUT, OTHER, PHASES, WARM_UP

from mgpu_doctor.analysis.statistics.significance import period
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.warm_up import (
    after_warm_up,
    all_after_warm_up,
    each_after_warm_up,
)
from mgpu_doctor.case.device_times import DEVICE_TIMED
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.record_chunks import Chunk, chunks
from mgpu_doctor.recording.second_process import Divided


def phase_shares(ranks: Sequence[Rank], phase: int) -> dict[int, float] | None:
    """Rank -> share, 0..1, of its wall time after warm-up spent in a phase. Ranks without a
    measurement are left out; None if no rank has one."""
    shares = np.full(len(ranks), np.nan)
    for chunk in chunks([after_warm_up(rank.steps) for rank in ranks]):
        if not chunk.measured(phase):
            continue
        seconds, wall_ns = chunk[phase].astype(float), chunk["wall_ns"]
        unknown = np.isnan(seconds)
        if unknown.any():
            seconds, wall_ns = np.where(unknown, 0, seconds), np.where(unknown, 0, wall_ns)
        wall = wall_ns.sum(axis=1) * 1e-9
        nothing = np.full(len(wall), np.nan)
        shares[chunk.places] = np.divide(seconds.sum(axis=1), wall, out=nothing, where=wall > 0)
    return {
        rank.rank: share
        for rank, share in zip(ranks, shares.tolist(), strict=True)
        if rank.rank is not None and not isnan(share)
    } or None


def step_seconds(ranks: Sequence[Rank]) -> float | None:
    """Mean seconds per step after warm-up, over steps and ranks; None: no such step."""
    nanoseconds, count = 0, 0
    for chunk in chunks(each_after_warm_up([rank.steps for rank in ranks])):
        wall = chunk["wall_ns"]
        nanoseconds += int(wall.sum())
        count += wall.size
    return nanoseconds * 1e-9 / count if count else None


def coverage(ranks: Sequence[Rank]) -> Divided[float | None]:
    """Share, 0..1, of the ranks' wall time after warm-up that phases other than `other`, and the
    garbage collector outside them, explain. Time between the end of a step and the begin of the
    next counts as unexplained. None if no rank has a step."""
    parts = list(chunks([rank.steps for rank in ranks]))

    def combine(seconds: Sequence[tuple[Floats, Floats]]) -> float | None:
        explained, wall = np.zeros(len(ranks)), np.zeros(len(ranks))
        for chunk, both in zip(parts, seconds, strict=True):
            explained[chunk.places], wall[chunk.places] = both
        total = sum(wall.tolist())  # in the order of the ranks, however they are stored
        return min(1.0, sum(explained.tolist()) / total) if total > 0 else None

    return Divided([partial(_seconds, chunk) for chunk in parts], combine)


def _seconds(chunk: Chunk) -> tuple[Floats, Floats]:
    """(k) explained seconds and (k) total seconds."""
    kept = chunk["flags"] & WARM_UP == 0
    phases = np.empty((len(kept), len(PHASES)))
    for numbers, seconds in chunk.phases():
        phases[:, numbers] = _sums(seconds, kept).T
    collected = np.minimum(_sums(chunk["gc_s"], kept), phases[:, OTHER])
    wall, end, sequence = chunk["wall_ns"], chunk["end_ns"], chunk["seq"]
    between = np.maximum(end[:, 1:] - wall[:, 1:] - end[:, :-1], 0)
    # A host-timed end and a device-timed length do not tell when the step began.
    adjacent = kept[:, 1:] & kept[:, :-1] & (chunk["flags"][:, 1:] & DEVICE_TIMED == 0)
    adjacent &= sequence[:, 1:] - sequence[:, :-1] == 1
    explained = phases.sum(axis=1) - phases[:, OTHER] + collected
    total = wall.sum(axis=1, where=kept) + between.sum(axis=1, where=adjacent)
    return np.asarray(explained), total * 1e-9


def _sums(seconds: Floats, kept: npt.NDArray[np.bool_]) -> Floats:
    """(…, k) sums of the known values of (…, k, n). `kept`: (k, n)."""
    if seconds.size and not seconds.strides[-1]:  # the same in all records
        return np.asarray(np.nan_to_num(seconds[..., 0].astype(float)) * kept.sum(axis=1))
    if kept.all() and not np.isnan(sums := seconds.sum(axis=-1, dtype=np.float64)).any():
        return np.asarray(sums)  # the usual case
    counted = kept & ~np.isnan(seconds)
    return np.asarray(np.where(counted, seconds, 0).sum(axis=-1, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class LongSteps:
    """A few steps that take much of the time."""

    steps: float
    """Share of the steps, 0..1."""
    time: float
    """Share of the time, 0..1."""
    seconds: float
    """Median seconds of a long step, or of several in a row; mean over ranks."""
    period: float | None
    """Steps between two of them; None: irregular."""


LONG = 5.0
"""How many times the median a step must take to count as long. A choice."""
FEW, MUCH = 0.1, 0.2
"""Long steps are reported if they are at most this share of the steps and at least that share of
the time. A choice."""


def find_long_steps(steps: Ints, wall: Floats) -> LongSteps | None:
    """The long steps of all ranks together; None if they are too many or take too little time.
    `steps`: (T) step numbers; `wall`: (T, R) seconds. A step is long if it is long on any rank.
    Adjacent long steps count once: one rank's work after a collective delays the others only in
    their next step."""
    if not len(wall):
        return None
    longest, mean = wall.max(axis=1), wall.mean(axis=1)
    is_long = longest > LONG * np.median(longest)
    first = np.flatnonzero(is_long & ~np.concatenate(([False], is_long[:-1])))
    share, time = len(first) / len(wall), float(mean[is_long].sum() / mean.sum())
    if not 0 < share <= FEW or time < MUCH:
        return None
    lasted = np.add.reduceat(np.where(is_long, mean, 0.0), first)
    regular = period(steps[first])
    return LongSteps(share, time, float(np.median(lasted)), regular.steps if regular else None)


def long_steps_of(rank: Rank) -> LongSteps | None:
    """The long steps of a single rank, also untimed ones."""
    records = all_after_warm_up(rank.steps)
    return find_long_steps(records["step"].astype(np.int64), records["wall_ns"][:, None] * 1e-9)


FEWEST = 3
"""Minimum number of epochs, and of steps per epoch, for a pattern."""


def at_epoch_starts(rank: Rank, batches: int | None) -> tuple[float, float] | None:
    """Share, 0..1, of a rank's wait for data that is extra wait in the first step of an epoch, and
    the median seconds of such a first wait.

    `batches`: batches per epoch of the loader. None: unknown, or too few epochs on record.
    """
    records = after_warm_up(rank.steps)
    if not batches or not len(records):
        return None
    each = max(1, int(np.median(records["micro_batches"])))
    distance = batches // each
    if distance < FEWEST or batches % each:
        return None
    waits = np.nan_to_num(records["phases"][:, INPUT].astype(float))
    place = records["step"].astype(np.int64) % distance
    if len(waits) < FEWEST * distance or waits.sum() <= 0:
        return None
    first = place == np.bincount(place, waits, minlength=distance).argmax()
    extra = np.maximum(waits[first] - np.median(waits), 0.0)
    return float(extra.sum() / waits.sum()), float(np.median(waits[first]))
