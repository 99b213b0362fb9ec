"""How much of the ranks' time the measured phases explain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mgpu_probes.inprocess.layout import OTHER, WARM_UP

from mgpu_doctor.analysis.steps.shares import only
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.columns import phase_sums


def coverage(ranks: Sequence[Rank]) -> float | None:
    """Share, 0..1, of the ranks' wall time after warm-up that phases other than `other` explain;
    None where no rank has a step. Time between one step's end and the next one's begin counts as
    not explained."""
    parts = [_seconds(rank.steps) for rank in ranks]
    wall = sum(part[1] for part in parts)
    return min(1.0, sum(part[0] for part in parts) / wall) if wall > 0 else None


def _seconds(records: Records) -> tuple[float, float]:
    """Explained and whole seconds."""
    warming_up = records["flags"] & WARM_UP
    if warming_up.any():
        records = only(records, warming_up == 0)
    if not len(records):
        return 0.0, 0.0
    phases = phase_sums(records)
    wall, end = records["wall_ns"], records["end_ns"]
    between = np.maximum(end[1:] - wall[1:] - end[:-1], 0)
    next_to = records["seq"][1:] - records["seq"][:-1] == 1
    explained = phases.sum() - phases[OTHER]
    if not next_to.all():
        between = between[next_to]
    return float(explained), float(wall.sum() + between.sum()) * 1e-9
