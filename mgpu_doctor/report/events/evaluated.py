"""Evaluations: time that ranks spent on batches from which nothing was learned."""

from __future__ import annotations

import numpy as np
from mgpu_probes.inprocess.layout import EVALUATION

from mgpu_doctor.case.model import Event, Rank

LEAST = 0.05
"""Seconds of a step from which its evaluation is told: a batch or two looked at beside is none."""
MOST = 16
"""Of one rank, the newest."""


def evaluations(rank: Rank) -> tuple[Event, ...]:
    """Of a rank that does not tell of them itself, by its step records: each was over when the step
    was over in which it was counted."""
    names = rank.steps.dtype.names or ()
    if not len(rank.steps) or not {"phases", "end_ns", "step"} <= {*names}:
        return ()
    seconds = rank.steps["phases"][:, EVALUATION]
    found = np.flatnonzero(np.nan_to_num(seconds) >= LEAST)[-MOST:].tolist()
    ends = rank.steps["end_ns"]
    return tuple(
        Event(
            "evaluation",
            float(ends[place]) * 1e-9 + rank.clock_offset,
            int(rank.steps["step"][place]),
            float(seconds[place]),
            0.0,
            "",
        )
        for place in found
    )


def is_cut(rank: Rank) -> bool:
    """Whether there may have been more of them."""
    return rank.lost_records > 0 or len(evaluations(rank)) >= MOST
