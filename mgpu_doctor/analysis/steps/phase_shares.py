"""Measures how each rank spends its time, without comparing ranks: shares of phases, coverage, long
steps, waits at the begin of epochs. Pure. `measures` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mgpu_probes.inprocess.layout import INPUT, OTHER, WARM_UP

from mgpu_doctor.analysis.statistics.significance import period
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.warm_up import after_warm_up, all_after_warm_up
from mgpu_doctor.case.device_times import DEVICE_TIMED
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.columns import Columns, phase_of, phase_sums, select


def phase_shares(ranks: Sequence[Rank], phase: int) -> dict[int, float] | None:
    """Rank -> share, 0..1, of its wall time after warm-up spent in a phase. Ranks without a
    measurement are left out; None if no rank has one."""
    shares = {}
    for rank in ranks:
        records = after_warm_up(rank.steps)
        if isinstance(records, Columns) and not records.measured(phase):
            continue
        seconds, wall_ns = phase_of(records, phase).astype(float), records["wall_ns"]
        unknown = np.isnan(seconds)
        if unknown.any():
            seconds, wall_ns = seconds[~unknown], wall_ns[~unknown]
        wall = wall_ns.sum() * 1e-9
        if rank.rank is not None and wall > 0:
            shares[rank.rank] = float(seconds.sum() / wall)
    return shares or None


def step_seconds(ranks: Sequence[Rank]) -> float | None:
    """Mean seconds per step after warm-up, over steps and ranks; None: no such step."""
    nanoseconds, count = 0.0, 0
    for rank in ranks:
        wall = all_after_warm_up(rank.steps)["wall_ns"]
        nanoseconds += float(wall.sum())
        count += len(wall)
    return nanoseconds * 1e-9 / count if count else None


def coverage(ranks: Sequence[Rank]) -> float | None:
    """Share, 0..1, of the ranks' wall time after warm-up that phases other than `other`, and the
    garbage collector outside them, explain. Time between the end of a step and the begin of the
    next counts as unexplained. None if no rank has a step."""
    parts = [_seconds(rank.steps) for rank in ranks]
    wall = sum(part[1] for part in parts)
    return min(1.0, sum(part[0] for part in parts) / wall) if wall > 0 else None


def _seconds(records: Records) -> tuple[float, float]:
    """Explained seconds and total seconds."""
    warming_up = records["flags"] & WARM_UP
    if warming_up.any():
        records = select(records, warming_up == 0)
    if not len(records):
        return 0.0, 0.0
    phases = phase_sums(records)
    wall, end = records["wall_ns"], records["end_ns"]
    between = np.maximum(end[1:] - wall[1:] - end[:-1], 0)
    between[records["flags"][1:] & DEVICE_TIMED != 0] = 0  # the host's end, the device's wall time
    next_to = records["seq"][1:] - records["seq"][:-1] == 1
    collected = min(float(np.nansum(records["gc_s"])), float(phases[OTHER]))
    explained = phases.sum() - phases[OTHER] + collected
    if not next_to.all():
        between = between[next_to]
    return float(explained), float(wall.sum() + between.sum()) * 1e-9


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
