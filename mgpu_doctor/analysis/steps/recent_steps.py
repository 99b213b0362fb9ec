"""The part of a case that is still current, so that past problems are no longer reported."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mgpu_doctor.case.device_times import steps_back
from mgpu_doctor.case.model import Case, Outcome, Rank, Records

STEPS = 200
"""Finding a rank that is 3 % slower at 3 % noise takes about 40 steps (benchmarks/detection.py),
plus as many earlier steps for the baseline. 200 leave room for slower cases."""
TIMED_STEPS = 80
"""The same for ranks on devices, which may time only one step in many: twice the 40."""
SECONDS = 60.0
"""Jobs with short steps keep more of them, so that events every few seconds appear repeatedly."""

LATE = 2.0
"""Seconds after which the end of a process is seen on a busy host, at most: other ranks notice it
at once. A choice."""


def recent(case: Case, *, steps: int = STEPS, seconds: float = SECONDS) -> Case:
    """The case with only the newest step records of each rank: `steps`, or as many as the fastest
    rank took in `seconds`, or as hold `TIMED_STEPS` that devices timed, if that is more. All ranks
    keep the same number, so that they can still be joined."""
    within = (_within(rank.steps, seconds) for rank in case.ranks)
    timed = (steps_back(rank, TIMED_STEPS) for rank in case.ranks)
    kept = max([steps, *within, *timed])
    if all(len(rank.steps) <= kept for rank in case.ranks):
        return case
    ranks = (replace(rank, steps=rank.steps[-kept:]) for rank in case.ranks)
    return replace(case, ranks=tuple(ranks))


def unmoved(case: Case) -> Case:
    """The case without outdated stack samples and flight-recorder dumps: those taken before the
    newest step ended, and all of them once the job has completed. If the job was asked to end, a
    step that ended after a first rank had is no progress: an exception in its collective ended
    it."""
    if not case.job_snapshots and not case.flights:
        return case
    if case.job.outcome is Outcome.COMPLETED:
        return replace(case, job_snapshots=(), flights=())
    ends = [rank.ended for rank in case.ranks if rank.ended is not None]
    stopped = min(ends, default=math.inf) - LATE if case.job.asked is not None else math.inf
    moved = max(
        (at for rank in case.ranks if (at := _newest(rank, stopped)) is not None), default=None
    )
    if moved is None:
        return case
    return replace(
        case,
        job_snapshots=tuple(snapshot for snapshot in case.job_snapshots if snapshot.at > moved),
        flights=tuple(dump for dump in case.flights if dump.at is None or dump.at > moved),
    )


def _newest(rank: Rank, stopped: float) -> float | None:
    """End of the rank's newest step, in seconds since the epoch; its start if it ended only after
    the moment `stopped`."""
    if not len(rank.steps):
        return None
    newest = rank.steps[-1]
    end = float(newest["end_ns"]) * 1e-9 + rank.clock_offset
    return end if end <= stopped else end - float(newest["wall_ns"]) * 1e-9


def _within(records: Records, seconds: float) -> int:
    """Number of newest records that cover the last `seconds`."""
    if not len(records):
        return 0
    end = records["end_ns"]
    return len(records) - int(np.searchsorted(end, end[-1] - seconds * 1e9, side="right"))
