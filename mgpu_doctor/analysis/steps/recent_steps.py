"""What of a case still holds: what is over is no longer told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mgpu_doctor.case.model import Case, Outcome, Rank, Records

STEPS = 200
"""A rank 3 % slower at 3 % noise takes some 40 steps to be told (benchmarks/detection.py), and as
many again of the time before tell what is usual; 200 leave room for both where it takes longer."""
SECONDS = 60.0
"""Short steps need more of them: what comes once in some seconds must be seen more than once."""


def recent(case: Case, *, steps: int = STEPS, seconds: float = SECONDS) -> Case:
    """The case with each rank's step records cut to the newest ones: `steps`, or as many as the
    fastest rank took in `seconds` if they are more. All ranks keep equally many, so that they
    still have them in common."""
    kept = max([steps, *(_within(rank.steps, seconds) for rank in case.ranks)])
    if all(len(rank.steps) <= kept for rank in case.ranks):
        return case
    ranks = (replace(rank, steps=rank.steps[-kept:]) for rank in case.ranks)
    return replace(case, ranks=tuple(ranks))


def unmoved(case: Case) -> Case:
    """The case without the looks and flight-recorder dumps that the job has outlived: those taken
    before its newest step ended, and all of them once it has completed."""
    if not case.looks and not case.flights:
        return case
    if case.job.outcome is Outcome.COMPLETED:
        return replace(case, looks=(), flights=())
    moved = max((end for rank in case.ranks if (end := _newest(rank)) is not None), default=None)
    if moved is None:
        return case
    return replace(
        case,
        looks=tuple(look for look in case.looks if look.at > moved),
        flights=tuple(one for one in case.flights if one.at is None or one.at > moved),
    )


def _newest(rank: Rank) -> float | None:
    """When the rank ended its newest step, in seconds since the epoch."""
    if not len(rank.steps):
        return None
    return float(rank.steps["end_ns"][-1]) * 1e-9 + rank.clock_offset


def _within(records: Records, seconds: float) -> int:
    """How many of the newest records it takes to cover so many seconds."""
    if not len(records):
        return 0
    end = records["end_ns"]
    return len(records) - int(np.searchsorted(end, end[-1] - seconds * 1e9, side="right"))
