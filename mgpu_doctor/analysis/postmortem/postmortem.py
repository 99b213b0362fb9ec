"""The post-mortem of a job: which ranks failed, which failed first and why, and what the console
says.

It is computed once, by `measure`. Rules read it; none judges the failures again. Pure.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.postmortem.dead_rank_stall import Stall, find_dead_rank_stall
from mgpu_doctor.analysis.postmortem.failure_order import (
    find_first_failures,
    find_unordered_failures,
)
from mgpu_doctor.analysis.postmortem.log_verdict import LogCause, judge_log
from mgpu_doctor.analysis.postmortem.out_of_memory import find_out_of_memory, is_cleared
from mgpu_doctor.analysis.postmortem.rank_failures import (
    SEEN_FROM_OUTSIDE,
    FailureKind,
    RankFailure,
    find_rank_failures,
)
from mgpu_doctor.analysis.postmortem.unexplained_failures import (
    find_absent_ranks,
    find_early_exits,
    find_killed_helper,
    find_silent_hosts,
    find_unjoined_hosts,
)
from mgpu_doctor.analysis.postmortem.unmet_wait import (
    SplitWait,
    UnmetWait,
    find_split_wait,
    find_unmet_wait,
)
from mgpu_doctor.analysis.structure.independent_ranks import find_later_failures
from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.model import AskedHost, Case, Outcome, ProcessEnd, Rank


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is known about a job's failures. An empty field: nothing of the kind was found."""

    failures: tuple[RankFailure, ...] = ()
    """Every rank's failure, secondary ones too."""
    first: tuple[RankFailure, ...] = ()
    """The first failure and those of other ranks that belong to the same event."""
    culprits: tuple[RankFailure, ...] = ()
    """`first`, if the job failed because of them. Empty if the job completed or was asked to end,
    if surviving ranks still wait (a hang), or if it is not yet known how a rank ended."""
    others: tuple[tuple[RankFailure, ...], ...] = ()
    """If the ranks are independent: their further failures, by event."""
    unordered: tuple[RankFailure, ...] = ()
    """Failures of different kinds, if it is unknown which was first."""
    out_of_memory: tuple[RankFailure, ...] = ()
    """The culprits that were killed for lack of host memory, also if all processes were killed at
    once."""
    stall: Stall | None = None
    """Surviving ranks that wait for a rank that no longer exists."""
    unmet_wait: UnmetWait | None = None
    """Ranks whose collective failed because other ranks did something else."""
    split_wait: SplitWait | None = None
    """All ranks waited in different collectives until they failed."""
    early_exits: tuple[Rank, ...] = ()
    """Ranks that exited normally and thereby broke the others' connections."""
    absent: tuple[Rank, ...] = ()
    """Ranks that never joined the process group."""
    unjoined_hosts: tuple[AskedHost, ...] = ()
    """Hosts whose ranks never joined it, and of which no rank is known."""
    silent_hosts: tuple[AskedHost, ...] = ()
    """Hosts of which no rank is known, and because of which the others failed."""
    killed_helper: ProcessEnd | None = None
    """A process that is not a rank and was killed just before the ranks failed."""
    log: tuple[LogCause, ...] = ()
    """What ended the job by its console text, and the defects that the text reports."""

    @property
    def events(self) -> tuple[tuple[RankFailure, ...], ...]:
        """The culprits, and then the further failures of independent ranks."""
        return (self.culprits, *self.others) if self.culprits else ()

    def log_cause(self, code: str) -> LogCause | None:
        """The console's cause or defect with this code; None if none."""
        return next((cause for cause in self.log if cause.code == code), None)

    @property
    def fatal_log_cause(self) -> LogCause | None:
        """What ended the job by its console text."""
        return next((cause for cause in self.log if cause.is_fatal), None)


def examine_failures(case: Case, *, shows_waiting: bool, is_flat: bool) -> PostMortem:
    """The post-mortem of a job. `shows_waiting`: whether stacks or a flight recorder show whom the
    ranks wait for, which says more than any time-out in the console."""
    failures = find_rank_failures(case)
    first = tuple(with_memory(failure, case) for failure in find_first_failures(failures, case))
    independent = are_independent(case.ranks)
    stall = None if independent else find_dead_rank_stall(first, case)
    unmet_wait = None if shows_waiting else find_unmet_wait(failures, case)
    split_wait = None if shows_waiting else find_split_wait(failures, case)
    shows_waiting = shows_waiting or unmet_wait is not None or split_wait is not None
    culprits = () if stall is not None else _find_culprits(first, case)
    return PostMortem(
        failures=failures,
        first=first,
        culprits=culprits,
        others=tuple(
            tuple(with_memory(failure, case) for failure in event)
            for event in (find_later_failures(failures, culprits, case) if independent else ())
        ),
        unordered=find_unordered_failures(failures, case),
        out_of_memory=tuple(
            failure for failure in culprits or _killed_at_once(first, case) if failure.memory
        ),
        stall=stall,
        unmet_wait=unmet_wait,
        split_wait=split_wait,
        early_exits=() if independent else find_early_exits(failures, case),
        absent=find_absent_ranks(first, case),
        unjoined_hosts=find_unjoined_hosts(first, case),
        silent_hosts=find_silent_hosts(failures, first, case),
        killed_helper=find_killed_helper(failures, first, case),
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


def _killed_at_once(first: tuple[RankFailure, ...], case: Case) -> tuple[RankFailure, ...]:
    """The ranks of a job that was killed as a whole without being asked to end: a control group's
    kill of all its processes looks like a `kill -9` of the job."""
    if case.job.outcome is not Outcome.KILLED or case.job.asked is not None:
        return ()
    killed = tuple(failure for failure in first if failure.kind is FailureKind.KILLED)
    return killed or tuple(with_memory(failure, case) for failure in _killed_before_ranks(case))


def _killed_before_ranks(case: Case) -> tuple[RankFailure, ...]:
    """Processes that SIGKILL ended before any of them was a rank."""
    if case.ranks or case.job.signal != signal.SIGKILL:
        return ()
    host = case.job.hosts[0] if len(case.job.hosts) == 1 else None
    return tuple(
        RankFailure(
            FailureKind.KILLED,
            None,
            "exit status",
            SEEN_FROM_OUTSIDE,
            host=host,
            pid=end.pid,
            signal=signal.SIGKILL,
            at=end.at,
        )
        for end in case.ends
        if end.signal == signal.SIGKILL
    )


def with_memory(failure: RankFailure, case: Case) -> RankFailure:
    """The failure, with the evidence for or against a kill for lack of host memory."""
    memory = find_out_of_memory(failure, case)
    return replace(failure, memory=memory, is_cleared=is_cleared(failure, case))
