"""Whom the rules of failed jobs have to explain. Pure."""

from __future__ import annotations

from mgpu_doctor.analysis.postmortem.dead_rank_stall import find_dead_rank_stall
from mgpu_doctor.analysis.postmortem.failure_order import find_first_failures
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.model import Case, Outcome


def explained_failures(case: Case) -> tuple[RankFailure, ...]:
    """Who failed first by itself, in a job that failed because of it. Empty: nobody, or the job was
    asked to end, completed, or its survivors still wait (a hang), or how it ended may yet be
    told."""
    if (
        case.job.outcome in (Outcome.KILLED, Outcome.COMPLETED)
        or find_dead_rank_stall(case) is not None
    ):
        return ()
    culprits = find_first_failures(case)
    if (
        culprits
        and case.job.outcome is Outcome.RUNNING
        and culprits[0].kind is FailureKind.VANISHED
    ):
        return ()
    return culprits
