"""What single ranks spend their time on, without comparing them."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import WARM_UP

from mgpu_doctor.analysis.steps.align import FIRST_STEPS, LEADING, LEADING_FACTOR, warming_up
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.columns import Columns, phase_of

Rows = slice | npt.NDArray[np.bool_]

_KNOWN: WeakKeyDictionary[Columns, Columns] = WeakKeyDictionary()
"""A dozen measures and rules ask for the same."""


def after_warm_up(records: Records) -> Records:
    """The records of one rank that are no warm-up."""
    if not len(records):
        return records
    if not isinstance(records, Columns):
        return records[_warm(records)]
    kept = _KNOWN.get(records)
    if kept is None:
        kept = _KNOWN[records] = records[_warm(records)]
    return kept


def _warm(records: Records) -> Rows:
    steps, flags, wall = records["step"], records["flags"], records["wall_ns"]
    if not (flags & WARM_UP).any() and wall[:LEADING].max() <= LEADING_FACTOR * wall.min():
        return _rows(steps >= FIRST_STEPS)  # as of most ranks: nothing else to find
    steps, flags = steps.astype(np.int64), flags.astype(np.int64)
    return _rows(~warming_up(steps, wall * 1e-9, flags))


def only(records: Records, kept: npt.NDArray[np.bool_]) -> Records:
    """Some of the records; no copy where they are all from some one on."""
    return records[_rows(kept)]


def _rows(kept: npt.NDArray[np.bool_]) -> Rows:
    first = int(kept.argmax()) if len(kept) else 0
    return slice(first, None) if kept[first:].all() else kept


def phase_shares(ranks: Sequence[Rank], phase: int) -> dict[int, float] | None:
    """Rank -> share, 0..1, of its wall time after warm-up in a phase; ranks without a measurement
    are left out; None where no rank has one."""
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
    """Mean seconds a step after warm-up, over steps and ranks; None: no such step."""
    walls = [after_warm_up(rank.steps)["wall_ns"] for rank in ranks]
    count = sum(len(wall) for wall in walls)
    return sum(float(wall.sum()) for wall in walls) * 1e-9 / count if count else None
