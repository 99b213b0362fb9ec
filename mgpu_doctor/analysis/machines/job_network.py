"""The network between the hosts of a job, in the steps in which communication takes as long as at
the end. Pure.

A link that becomes slower while the job trains is examined from then on: before, it was healthy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.cost.communication_cost import Moving, moving
from mgpu_doctor.analysis.machines.host_links import HostLink, measure_links
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, change_point
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.case.model import Case

LONGER = 1.5
"""Factor by which communication must become longer. A choice: steps vary by less."""


@dataclass(frozen=True, slots=True)
class LongerCommunication:
    """Communication that takes longer from some step on."""

    step: int
    """The first such step."""
    at: float
    """When the first rank ended it, in seconds since the epoch."""
    moving: Moving
    """From then on."""
    step_seconds: float


def find_longer_communication(
    joined: Joined, attribution: Attribution
) -> LongerCommunication | None:
    """None: it does not take `LONGER` times as long at the end as before."""
    known = np.flatnonzero(~np.isnan(attribution.communication))
    series = attribution.communication[known].astype(np.float64)
    onset = change_point(series) if len(series) >= 2 * LEAST_STEPS else None
    if onset is None or len(series) - onset < LEAST_STEPS:
        return None
    if np.median(series[onset:]) < LONGER * np.median(series[:onset]):
        return None
    index = int(known[onset])
    since = joined.between(index, len(joined.steps))
    moved = moving(since, attribution.between(index, len(joined.steps)))
    if moved is None:
        return None
    at = float(since.cells.column("end_ns", 0)[0]) * 1e-9 + since.offsets[0]
    return LongerCommunication(int(since.steps[0]), at, moved, since.step_seconds)


@dataclass(frozen=True, slots=True)
class Network:
    """What is known about the network of a job."""

    longer: LongerCommunication | None = None
    """None: communication takes no longer at the end than before."""
    links: tuple[HostLink, ...] = ()
    """What the hosts sent to each other, since `longer`; empty: not known."""


def measure_network(case: Case, joined: Joined | None, attribution: Attribution | None) -> Network:
    """`attribution`: None if communication cannot be separated from waiting."""
    longer = None
    if joined is not None and attribution is not None and len(case.job.hosts) > 1:
        longer = find_longer_communication(joined, attribution)
    return Network(longer, measure_links(case, 0.0 if longer is None else longer.at))
