"""The post-mortem of a job: which ranks failed, which failed first, and what the console says.

It is computed once, by `measure`. Rules read it; none judges the failures again. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.dead_rank_stall import Stall, find_dead_rank_stall
from mgpu_doctor.analysis.postmortem.failure_order import (
    find_first_failures,
    find_unordered_failures,
)
from mgpu_doctor.analysis.postmortem.log_verdict import LogCause, judge_log
from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    RankFailure,
    find_rank_failures,
)
from mgpu_doctor.analysis.postmortem.unexplained_failures import find_absent_ranks, find_early_exits
from mgpu_doctor.case.model import Case, Outcome, Rank


@dataclass(frozen=True, slots=True)
class PostMortem:
    """Empty fields: nothing of the kind was found."""

    failures: tuple[RankFailure, ...] = ()
    """Every rank's failure, secondary ones too."""
    first: tuple[RankFailure, ...] = ()
    """The first failure and those of other ranks that belong to the same event."""
    culprits: tuple[RankFailure, ...] = ()
    """The same, if the job failed because of them. Empty if it completed or was asked to end, if
    survivors still wait (a hang), or if it is not yet known how a rank ended."""
    unordered: tuple[RankFailure, ...] = ()
    """Failures of different kinds, if it is unknown which was first."""
    stall: Stall | None = None
    """Survivors that wait for a rank that is gone."""
    early_exits: tuple[Rank, ...] = ()
    """Ranks that exited normally and thereby broke the others' connections."""
    absent: tuple[Rank, ...] = ()
    """Ranks that never joined the process group."""
    log: tuple[LogCause, ...] = ()
    """What ended the job by its console text, and the defects that the text reports."""


def examine_failures(case: Case, *, shows_waiting: bool, is_flat: bool) -> PostMortem:
    """The post-mortem of a job. `shows_waiting`: whether stacks or a flight recorder show whom the
    ranks wait for, which says more than any time-out in the console."""
    failures, first = find_rank_failures(case), find_first_failures(case)
    stall = find_dead_rank_stall(case)
    return PostMortem(
        failures=failures,
        first=first,
        culprits=() if stall is not None else _find_culprits(first, case),
        unordered=find_unordered_failures(case),
        stall=stall,
        early_exits=find_early_exits(failures, case),
        absent=find_absent_ranks(first, case),
        log=judge_log(
            case, first, blames_symptoms=stall is None and not shows_waiting, is_flat=is_flat
        ),
    )


def _find_culprits(first: tuple[RankFailure, ...], case: Case) -> tuple[RankFailure, ...]:
    outcome = case.job.outcome
    if outcome in (Outcome.KILLED, Outcome.COMPLETED):
        return ()
    if first and outcome is Outcome.RUNNING and first[0].kind is FailureKind.VANISHED:
        return ()  # its exit status may still become known
    return first
