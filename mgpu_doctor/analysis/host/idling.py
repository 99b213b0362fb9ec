"""How long a rank's main thread neither ran nor stood ready: it slept, or waited for something."""

from __future__ import annotations

from math import isnan

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, WAIT

from mgpu_doctor.analysis.host.surroundings import Surroundings
from mgpu_doctor.analysis.steps.shares import after_warm_up
from mgpu_doctor.case.model import Rank


def idle(own: float | None, ran: float | None, step: float, around: Surroundings) -> float | None:
    """Seconds of a step's own work without those in which the main thread ran or stood ready.

    `own`: without collectives, in which some backends sleep and others spin; `ran`: CPU seconds of
    the main thread, all of which count as own work. None where it cannot be told: also where the
    work is a device's, as the host idles while that computes."""
    if own is None or ran is None or around.queueing is None or not around.computes_here:
        return None
    return max(0.0, own - ran - around.queueing * step)


def idle_of(rank: Rank, around: Surroundings) -> float | None:
    """The same of a rank by itself, medians after warm-up."""
    records = after_warm_up(rank.steps)
    if not len(records):
        return None
    wall = records["wall_ns"] * 1e-9
    standing = np.nan_to_num(records["phases"][:, [WAIT, COMMUNICATION]]).sum(axis=1)
    ran = float(np.median(records["cpu_s"]))
    own, step = float(np.median(wall - standing)), float(np.median(wall))
    return idle(own, None if isnan(ran) else ran, step, around)
