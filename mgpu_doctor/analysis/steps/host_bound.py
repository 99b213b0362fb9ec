"""Whether a rank is host-bound or device-bound, and what its host's work costs.

A host queues work and goes on, so that it may be ahead of its device. While it is, the device never
waits for it, and time that the host spends costs nothing. A host that is not ahead holds the device
up with whatever it does. In between, how much of the host's time the queue hides is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from mgpu_probes.inprocess.layout import BACKWARD, INPUT, OPTIMIZER

from mgpu_doctor.case.device_times import BoundBy, RunAhead, device_times
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.rank_device import device_kind

LITTLE = 0.05
"""Share of a step. A rank is host-bound if its host is ahead by at most so much, and device-bound
if it is ahead by more at both marks (a choice)."""


def run_ahead(rank: Rank) -> RunAhead | None:
    """How far the rank's host was ahead of its device, in the steps on record; None: the rank
    computes on the CPU, or its device timed no step."""
    rows, times = device_times(rank)
    known = ~np.isnan(times["least_lead"])
    if not known.any():
        return None
    rows, times = rows[known], times[known]
    most = times["most_lead"][~np.isnan(times["most_lead"])]
    single = rank.steps["micro_batches"][rows] <= 1
    # The lead shrank by no more than the device did between the two marks.
    besides = np.nan_to_num(times["phases"])[:, [INPUT, BACKWARD, OPTIMIZER]].sum(axis=1)
    before = times["least_lead"] - (times["wall_ns"] * 1e-9 - besides)
    return RunAhead(
        least=float(np.median(times["least_lead"])),
        most=float(np.median(most)) if len(most) else None,
        at_forward=float(np.median(np.where(single, np.maximum(before, 0), 0))),
    )


def find_bounds(
    ranks: Sequence[Rank], leads: Mapping[int, RunAhead], step: float | None
) -> dict[int, BoundBy]:
    """Rank -> what it is bound by; ranks for which it is unknown are left out. `leads`: how far
    hosts are ahead; `step`: mean seconds."""
    found = {}
    for rank in ranks:
        number = rank.rank
        if number is None:
            continue
        bound = BoundBy.HOST if device_kind(rank) == "cpu" else judge_bound(leads.get(number), step)
        if bound is not None:
            found[number] = bound
    return found


def judge_bound(lead: RunAhead | None, step: float | None) -> BoundBy | None:
    """Whether a rank on a device is bound by its host or its device; None: unknown. It is
    device-bound only if the device's queue was not empty at the begin of the forward pass. At the
    backward pass the host is ahead again, even if the device was idle between two steps."""
    if lead is None or not step:
        return None
    if lead.most is not None and lead.most <= LITTLE * step:
        return BoundBy.HOST
    return BoundBy.DEVICE if min(lead.least, lead.at_forward) > LITTLE * step else None


def cost_of_host_time(
    seconds: Mapping[int, float], bounds: Mapping[int, BoundBy]
) -> dict[int, float] | None:
    """Rank -> seconds by which its step is longer because its host spent `seconds`; None if that is
    unknown for any of the ranks."""
    if not all(rank in bounds for rank in seconds):
        return None
    return {rank: spent if bounds[rank] is BoundBy.HOST else 0.0 for rank, spent in seconds.items()}
