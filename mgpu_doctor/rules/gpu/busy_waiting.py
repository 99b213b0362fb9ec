"""GPUs that count as busy while their ranks wait for other ranks.

A kernel that waits in a collective runs, so a GPU's utilization does not show waiting; the device's
own times of the phases do. Of the time in which the GPU was busy, the part that its rank waited is
known as far as both together exceed the whole time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.case.device_times import clock_of
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.findings import BusyWaiting, Finding

LEAST = 0.1
"""Share of the busy time below which waiting is not worth a sentence (a choice)."""
MOST_OF_IT = 0.8
"""Share of the waiting that one rank's excess must explain for the sentence to name it (as of input
in the excess of a straggler)."""


def find_busy_waiting(measures: Measures, findings: Iterable[Finding]) -> dict[int, BusyWaiting]:
    """Rank -> how much of its GPU's utilization was waiting. Only GPUs with one rank and no known
    other process, whose waiting the device timed. Only a rank that `findings` blame is named."""
    if measures.joined is None or measures.attribution is None or not measures.structure.alike:
        return {}
    by_device = {rank.rank for rank in measures.case.ranks if clock_of(rank) is PhaseClock.DEVICE}
    blamed = {culprit.rank for finding in findings for culprit in finding.culprits}
    found = {}
    for number, placed in (measures.devices or {}).items():
        busy = placed.use.utilization
        is_alone = not placed.beside and not placed.foreign
        if not busy or not is_alone or number not in by_device & {*measures.joined.ranks}:
            continue
        seconds, share = _waited(measures.joined, measures.attribution, number)
        least = min(1.0, max(0.0, busy + share - 1) / busy)
        if least >= LEAST:
            culprit = _culprit(measures, number, seconds, blamed)
            found[number] = BusyWaiting(placed.use.index, busy, least, culprit)
    return found


def _waited(joined: Joined, attribution: Attribution, number: int) -> tuple[float, float]:
    """Mean seconds per step that a rank waited for others, and their share of the step."""
    column = joined.ranks.index(number)
    waits = attribution.wait[:, column]
    known = ~np.isnan(waits)
    seconds = float(np.mean(waits[known]))
    return seconds, seconds / float(np.mean(joined.wall[known, column]))


def _culprit(measures: Measures, number: int, waited: float, blamed: set[int | None]) -> int | None:
    """The rank that a rank waits for most of the time that it waits; None: nobody is known."""
    others = [one for one in measures.stragglers or () if one.rank in blamed - {number}]
    worst = max(others, key=lambda straggler: straggler.excess, default=None)
    if worst is None or not measures.is_flat or worst.excess < MOST_OF_IT * waited:
        return None
    return worst.rank
