"""Which steps belong to the warm-up of a run, and a rank's steps without them.

A run's first steps fill caches and compile, so they say nothing about the others.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import WARM_UP

from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.model import Records
from mgpu_doctor.recording.columns import Columns, select

FIRST_STEPS = 5
"""The first steps of a run fill caches and compile; they are not compared, unless `EXPLAINED`."""
LEADING = 20
LEADING_FACTOR = 5.0
"""Among the first 20 steps, one longer than 5 times the median is still warming up."""

_KNOWN: WeakKeyDictionary[Columns, Records] = WeakKeyDictionary()
"""A cache, because a dozen measures and rules need the same records."""


def after_warm_up(records: Records) -> Records:
    """The timed steps of one rank after its warm-up."""
    return timed(all_after_warm_up(records))


def all_after_warm_up(records: Records) -> Records:
    """All steps of one rank after its warm-up, also those of which only the wall time is known."""
    if not isinstance(records, Columns):
        return _without_warm_up(records)
    kept: Records | None = _KNOWN.get(records)
    if kept is None:
        kept = _KNOWN[records] = _without_warm_up(records)
    return kept


def _without_warm_up(records: Records) -> Records:
    if not len(records):
        return records
    steps, flags, wall = records["step"], records["flags"], records["wall_ns"]
    if not (flags & WARM_UP).any() and wall[:LEADING].max() <= LEADING_FACTOR * wall.min():
        return select(records, steps >= FIRST_STEPS)  # the common case, computed quickly
    steps, flags = steps.astype(np.int64), flags.astype(np.int64)
    return select(records, ~warming_up(steps, wall * 1e-9, flags))


def warming_up(steps: Ints, longest: Floats, flags: Ints) -> npt.NDArray[np.bool_]:
    """(T) whether a step belongs to the warm-up: flagged, among the first steps of the run, or much
    longer than the median near the start of the records. `longest`: seconds of the slowest rank;
    `flags`: combined flags of all ranks."""
    slow_start = longest > LEADING_FACTOR * np.median(longest)
    slow_start[LEADING:] = False
    return np.asarray((flags & WARM_UP != 0) | (steps < FIRST_STEPS) | slow_start)
