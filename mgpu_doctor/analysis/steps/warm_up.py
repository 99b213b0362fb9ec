"""Which steps belong to the warm-up of a run, and a rank's steps without them.

A run's first steps fill caches and compile, so they say nothing about the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import WARM_UP

from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.columns import Columns, select
from mgpu_doctor.recording.record_chunks import chunks

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


def each_after_warm_up(ranks: Sequence[Records]) -> list[Records]:
    """`all_after_warm_up` of each rank, in a fraction of the time."""
    after = [_KNOWN.get(steps) if isinstance(steps, Columns) else None for steps in ranks]
    new = [place for place, kept in enumerate(after) if kept is None]
    for chunk in chunks([ranks[place] for place in new]):
        started = chunk["step"] >= FIRST_STEPS
        if not started.shape[1]:
            continue
        first = started.argmax(axis=1)
        usual = _is_usual(chunk["flags"], chunk["wall_ns"])
        usual &= started.sum(axis=1) == started.shape[1] - first
        for at, start in zip(chunk.places[usual].tolist(), first[usual].tolist(), strict=True):
            steps = ranks[new[at]]
            kept = after[new[at]] = steps[start:]
            if isinstance(steps, Columns):
                _KNOWN[steps] = kept
    return [
        all_after_warm_up(steps) if kept is None else kept
        for steps, kept in zip(ranks, after, strict=True)
    ]


def spans_after_warm_up(ranks: Sequence[Rank]) -> list[tuple[float, float] | None]:
    """For each rank: when its first and its last step after warm-up ended, in seconds since the
    epoch; None: no such step."""
    spans: list[tuple[float, float] | None] = [None] * len(ranks)
    for chunk in chunks(each_after_warm_up([rank.steps for rank in ranks])):
        ends = chunk["end_ns"]
        if ends.shape[1]:
            both = (ends[:, [0, -1]] * 1e-9).tolist()
            for place, (first, last) in zip(chunk.places.tolist(), both, strict=True):
                offset = ranks[place].clock_offset
                spans[place] = first + offset, last + offset
    return spans


def _without_warm_up(records: Records) -> Records:
    if not len(records):
        return records
    steps, flags, wall = records["step"], records["flags"], records["wall_ns"]
    if _is_usual(flags, wall):
        return select(records, steps >= FIRST_STEPS)
    steps, flags = steps.astype(np.int64), flags.astype(np.int64)
    return select(records, ~warming_up(steps, wall * 1e-9, flags))


def _is_usual(flags: npt.NDArray[Any], wall: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether nothing but the number of a step can make it a warm-up, of a rank or of each of k
    ranks: the common case, seen quickly."""
    flagged = (flags & WARM_UP).any(axis=-1)
    longest = wall[..., :LEADING].max(axis=-1)
    return np.asarray(~flagged & (longest <= LEADING_FACTOR * wall.min(axis=-1)))


def warming_up(steps: Ints, longest: Floats, flags: Ints) -> npt.NDArray[np.bool_]:
    """(T) whether a step belongs to the warm-up: flagged, among the first steps of the run, or much
    longer than the median near the start of the records. `longest`: seconds of the slowest rank;
    `flags`: combined flags of all ranks."""
    first = (flags & WARM_UP != 0) | (steps < FIRST_STEPS)
    head = longest[:LEADING]
    if len(head) and head.max() > LEADING_FACTOR * longest.min():  # the median is not less
        first[:LEADING] |= head > LEADING_FACTOR * np.median(longest)
    return np.asarray(first)
