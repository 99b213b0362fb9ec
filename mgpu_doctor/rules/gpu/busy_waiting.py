"""GPUs that count as busy while their ranks wait for other ranks.

A kernel that waits in a collective counts as running, so a GPU's utilization does not show waiting;
the phase times by the device's clock do. The time by which busy time and waiting time together
exceed the whole time was both. In a blocked job, all busy time is waiting if the device, or else
the host, has been in a collective for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from mgpu_probes.inprocess.layout import PHASES, WAIT

from mgpu_doctor.analysis.machines.rank_devices import OnDevice
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.case.device_times import clock_of
from mgpu_doctor.case.model import DevicePosition, Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import BusyWaiting, Finding

LEAST = 0.1
"""Share of the busy time below which waiting is not mentioned (a choice)."""
MOST_OF_IT = 0.8
"""Share of the waiting that one rank's excess must explain for the sentence to name it (as of input
in the excess of a straggler)."""
STANDS = 5.0
"""Seconds that a rank of a blocked job has been in one collective, from which its GPU does nothing
but wait (a choice)."""


def find_busy_waiting(
    measures: Measures, findings: Iterable[Finding], hang: Finding | None
) -> dict[int, BusyWaiting]:
    """Rank -> how much of its GPU's utilization was waiting. Only GPUs with one rank and no known
    other process. Names only ranks that `findings` blame. `hang`: the hang that blocks the job."""
    found = {}
    ranks = {rank.rank: rank for rank in measures.case.ranks}
    worst = _find_worst(measures, findings)
    for number, placed in (measures.devices or {}).items():
        if placed.beside or placed.foreign:
            continue
        if hang is None:
            waiting = _in_steps(measures, ranks[number], placed, worst)
        else:
            waiting = _in_hang(measures, ranks[number], placed, hang)
        if waiting is not None and waiting.waiting >= LEAST:
            found[number] = waiting
    return found


def _in_hang(measures: Measures, rank: Rank, placed: OnDevice, hang: Finding) -> BusyWaiting | None:
    if placed.since is None or not placed.since.utilization or rank.rank not in hang.victims:
        return None
    position = rank.device_position
    now = position if isinstance(position, DevicePosition) else rank.now
    if now is None or now.phase != PHASES[WAIT] or measures.case.observed - now.since < STANDS:
        return None
    culprits = {culprit.rank for culprit in hang.culprits}
    culprit = culprits.pop() if len(culprits) == 1 else None
    return BusyWaiting(placed.since.index, placed.since.utilization, 1.0, culprit)


def _in_steps(
    measures: Measures, rank: Rank, placed: OnDevice, worst: Straggler | None
) -> BusyWaiting | None:
    joined, attribution, busy = measures.joined, measures.attribution, placed.use.utilization
    if joined is None or attribution is None or rank.rank not in joined.ranks or not busy:
        return None
    if clock_of(rank) is not PhaseClock.DEVICE or not measures.structure.alike:
        return None
    column = joined.ranks.index(rank.rank)
    waits = attribution.wait_of(np.array([column]))[:, 0]
    known = ~np.isnan(waits)
    seconds = float(np.mean(waits[known]))
    share = seconds / float(np.mean(joined.wall[known, column]))
    least = min(1.0, max(0.0, busy + share - 1) / busy)
    explains = worst is not None and worst.excess >= MOST_OF_IT * seconds
    culprit = worst.rank if worst is not None and explains and worst.rank != rank.rank else None
    return BusyWaiting(placed.use.index, busy, least, culprit)


def _find_worst(measures: Measures, findings: Iterable[Finding]) -> Straggler | None:
    """The straggler with the largest excess that a finding blames; None if there is none or if not
    all ranks wait for it."""
    blamed = {culprit.rank for finding in findings for culprit in finding.culprits}
    named = [straggler for straggler in measures.stragglers or () if straggler.rank in blamed]
    if not named or not measures.is_flat:
        return None
    return max(named, key=lambda straggler: straggler.excess)
