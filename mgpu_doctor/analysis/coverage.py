"""How much of the ranks' time the measured phases explain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mgpu_probes.inprocess.layout import OTHER, WARM_UP

from mgpu_doctor.case.model import Rank, Records


def coverage(ranks: Sequence[Rank]) -> float | None:
    """Share, 0..1, of the ranks' wall time after warm-up that phases other than `other` explain;
    None where no rank has a step. Time between one step's end and the next one's begin counts as
    not explained."""
    parts = [_seconds(rank.steps) for rank in ranks]
    wall = sum(part[1] for part in parts)
    return min(1.0, sum(part[0] for part in parts) / wall) if wall > 0 else None


def _seconds(records: Records) -> tuple[float, float]:
    """Explained and whole seconds."""
    records = records[(records["flags"] & WARM_UP) == 0]
    if not len(records):
        return 0.0, 0.0
    phases = np.nan_to_num(records["phases"].astype(float))
    explained = phases.sum() - phases[:, OTHER].sum()
    begin = records["end_ns"].astype(float) - records["wall_ns"].astype(float)
    next_to = np.diff(records["seq"].astype(np.int64)) == 1
    between = np.clip(begin[1:] - records["end_ns"][:-1].astype(float), 0, None)[next_to]
    return float(explained), float(records["wall_ns"].sum() + between.sum()) * 1e-9
