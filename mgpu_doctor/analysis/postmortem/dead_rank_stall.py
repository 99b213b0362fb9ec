"""Survivors that wait for a rank that is gone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    RankFailure,
)
from mgpu_doctor.case.model import Case, Outcome, Rank, State

LEAST_SECONDS = 10.0
"""A shorter wait may end by itself: torchrun looks after its ranks every 0.1 s (its
`--monitor-interval`) and gives those it ends some time. Longer would only keep people waiting."""
LEAST_STEPS = 10.0
"""Median steps that it must last, too, so that a job of long steps is not called hung in one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """`seconds`: how long the longest-waiting survivor has waited since the death."""

    culprits: tuple[RankFailure, ...]
    left_cleanly: bool
    waiting: tuple[Rank, ...]
    seconds: float
    threshold: float


def find_dead_rank_stall(failed: tuple[RankFailure, ...], case: Case) -> Stall | None:
    """The stall, if any: live, or until the whole job was ended. `failed`: the
    first failures.

    Once the launcher itself has ended the job because of the death, the others wait no more.
    """
    if case.job.outcome in (Outcome.COMPLETED, Outcome.FAILED):
        return None
    culprits = failed or tuple(_as_fall(rank) for rank in _first_to_leave(case.ranks))
    if not culprits:
        return None
    threshold = max(LEAST_SECONDS, LEAST_STEPS * (median_step(case.ranks) or 0.0))
    guilty = {failure.rank for failure in culprits}
    since = max((failure.at for failure in culprits if failure.at is not None), default=None)
    waits = {
        index: _waited(rank, since, case.observed)
        for index, rank in enumerate(case.ranks)
        if rank.rank not in guilty
    }
    long = {index: seconds for index, seconds in waits.items() if seconds >= threshold}
    if not long:
        return None
    waiting = tuple(case.ranks[index] for index in long)
    return Stall(culprits, not failed, waiting, max(long.values()), threshold)


def _waited(rank: Rank, since: float | None, observed: float) -> float:
    """Seconds that a rank has waited after `since`; 0 if it does not wait."""
    if rank.now is None or rank.now.phase != "wait":
        return 0.0
    if rank.state is State.WAITING:
        end: float | None = observed
    else:
        end = rank.ended if rank.state is State.DEAD and rank.error is None else None
    if end is None:
        return 0.0
    return end - max(rank.now.since, since or rank.now.since)


def _first_to_leave(ranks: Iterable[Rank]) -> list[Rank]:
    """Ranks that ended in good order at the earliest step, where others go on."""
    left = [rank for rank in ranks if rank.state is State.EXITED]
    steps = [step for rank in left if (step := rank.last_step) is not None]
    return [rank for rank in left if not steps or rank.last_step == min(steps)]


def _as_fall(rank: Rank) -> RankFailure:
    return RankFailure(
        FailureKind.EXIT,
        rank.rank,
        "black box",
        0.9,
        host=rank.host,
        device=rank.device,
        pid=rank.pid,
        exit_code=rank.exit_code,
        at=rank.ended,
        last_step=rank.last_step,
    )


def median_step(ranks: Iterable[Rank]) -> float | None:
    """Median seconds per step over all ranks; None: no steps were recorded."""
    walls = [rank.steps["wall_ns"] for rank in ranks if len(rank.steps)]
    return float(np.median(np.concatenate(walls))) * 1e-9 if walls else None
