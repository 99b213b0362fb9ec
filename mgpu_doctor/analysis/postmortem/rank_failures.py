"""The failures of ranks, joined from all sources. Pure.

A rank's failure is its own (a signal, an exception or exit code of its own) or an echo of another's
(see `echoes`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from mgpu_probes.outside.tracebacks import IN_GRAPH

from mgpu_doctor.analysis.postmortem.exception_texts import original, wrapped_in
from mgpu_doctor.analysis.postmortem.secondary_failures import (
    CLOSING_SIGNALS,
    find_aborts_for_others,
    is_secondary_failure,
)
from mgpu_doctor.case.ending_records import MemoryGroup
from mgpu_doctor.case.last_exceptions import EXCERPT
from mgpu_doctor.case.model import Case, Error, LoggedEnd, Outcome, Rank, State

SEEN_BY_ITSELF, SEEN_FROM_OUTSIDE, TOLD_BY_CONSOLE, VANISHED_ONLY = 0.99, 0.97, 0.8, 0.6
TOLD_BY_LAST_LINES = 0.6
"""Confidence by where the ending is known from: the rank's own record, its exit status, what was
printed, only its absence, or an exception without a traceback at the end of a log."""

FATAL = "Fatal Python error"


class FailureKind(str, Enum):
    KILLED = "killed"
    SIGNAL = "signal"
    EXCEPTION = "exception"
    EXIT = "exit"
    VANISHED = "vanished"
    SECONDARY = "secondary"


class MemoryProof(Enum):
    """What shows that host memory ran out."""

    KERNEL_LOG = "kernel log"
    """The kernel's log names the killed process."""
    GROUP_COUNTER = "group counter"
    """The count of kills rose in the control group of the process."""
    MACHINE_COUNTER = "machine counter"
    FULL_SAMPLE = "full sample"
    """Memory was full in the last sample, and nothing counted kills."""
    REFUSAL = "refusal"
    """The allocator's own exception."""


class FullMemory(Enum):
    """What was full."""

    GROUP = "control group"
    MACHINE = "machine"
    PROCESS_LIMIT = "process limit"
    REFUSED = "refused"
    """The system refused memory, it is unknown why."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """How host memory ended a rank or a child of it. Memory is in bytes."""

    proof: MemoryProof
    confidence: float
    pid: int | None
    """Pid of the process that was killed or refused memory."""
    is_child: bool
    """Whether it was a child of the rank, such as a data-loader worker."""
    full: FullMemory = FullMemory.UNKNOWN
    limit: int | None = None
    group: str | None = None
    """The control group that has this limit."""
    counted: MemoryGroup | None = None
    """The control group whose counters are evidence."""
    resident: int | None = None
    """Resident bytes of the killed process, by the kernel's log."""
    machine_kills: int | None = None
    """Processes that the OOM killer took on the host meanwhile."""
    sampled: tuple[int, int] | None = None
    """Bytes in use in the last sample, and the total."""
    process_limits: tuple[tuple[str, int], ...] = ()
    """Name (`address_space`, `data`) and limit."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank ended when it should not have. `rank` is None where the text does not say."""

    kind: FailureKind
    rank: int | None
    source: str
    confidence: float
    host: str | None = None
    device: str | None = None
    pid: int | None = None
    signal: int | None = None
    exit_code: int | None = None
    error: Error | None = None
    at: float | None = None
    last_step: int | None = None
    noticed_first: bool = False
    everyone: bool = False
    """The same error was printed by every process of the job."""
    inside: str | None = None
    """Where the error was raised, if not by the rank itself: `DataLoader worker process 0`."""
    order: int | None = None
    """Position among all ranks' final output, if one text contains all of them."""
    aborted_leaving: bool = False
    """Native code aborted the process while its interpreter went down."""
    memory: OutOfMemory | None = None
    """How host memory ended it; None: nothing shows that it did, or it was not judged."""
    is_cleared: bool = False
    """The kernel's log was read and names other processes alone: it did not kill this one."""


def find_rank_failures(case: Case) -> tuple[RankFailure, ...]:
    """Every failure, of culprits and of ranks that failed only because of others."""
    logged = case.console.ends
    rank_failures = [_of_rank(rank, logged, case) for rank in case.ranks if _has_failed(rank)]
    known_ranks = {rank.rank for rank in case.ranks} - {None}
    # What the launcher said about an earlier attempt is over.
    known_pids = {rank.pid for rank in (*case.ranks, *case.earlier)} - {None}
    texts: dict[object, list[LoggedEnd]] = {}
    for end in logged:
        if _is_ending(end) and end.rank not in known_ranks and end.pid not in known_pids:
            key = ("pid", end.pid) if end.rank is None else end.rank
            texts.setdefault(key, []).append(end)
    rank_failures += [_of_text(text) for text in texts.values()]
    aborted_for_others = find_aborts_for_others(case)
    return tuple(
        replace(failure, kind=FailureKind.SECONDARY)
        if failure.kind is FailureKind.SIGNAL
        and failure.signal == signal.SIGABRT
        and aborted_for_others(failure.rank)
        else failure
        for failure in _with_unlabelled(rank_failures, logged, case)
    )


def _has_failed(rank: Rank) -> bool:
    return rank.state is State.DEAD or (rank.state is State.EXITED and bool(rank.exit_code))


def _is_ending(end: LoggedEnd) -> bool:
    """Whether it is the end of a known rank or process, not just a printed traceback."""
    labelled = end.rank is not None or end.pid is not None
    return labelled and bool(end.exit_code or end.signal or end.error)


def _of_rank(rank: Rank, logged: tuple[LoggedEnd, ...], case: Case) -> RankFailure:
    own_ends = [
        end
        for end in logged
        if (end.pid is not None and end.pid == rank.pid)
        or (end.rank is not None and end.rank == rank.rank)
    ]
    printed = [end.error for end in own_ends if end.error is not None]
    error = rank.error or (printed[-1] if printed else None)
    inside, error = _unwrapped(error)
    outside = any(end.pid == rank.pid for end in case.ends)
    kind, number, code = _kind(rank.signal, rank.exit_code, error)
    if kind is FailureKind.SECONDARY and error is None and _was_sent_by_stranger(own_ends):
        kind = FailureKind.KILLED
    if kind is FailureKind.VANISHED:
        source, confidence = "its process is gone", VANISHED_ONLY
    elif rank.error is not None and kind is FailureKind.EXCEPTION:
        source, confidence = "black box", SEEN_BY_ITSELF
    elif kind is FailureKind.EXCEPTION and printed:
        source, confidence = "console", _confidence_in(own_ends)
    elif outside:
        source, confidence = "exit status", SEEN_FROM_OUTSIDE
    elif own_ends:
        source, confidence = own_ends[0].source, _confidence_in(own_ends)
    else:
        source, confidence = "black box", SEEN_FROM_OUTSIDE
    return RankFailure(
        kind,
        rank.rank,
        source,
        confidence,
        host=rank.host,
        device=rank.device,
        pid=rank.pid,
        signal=number,
        exit_code=code,
        error=error,
        at=error.at if error is not None and error.at is not None else rank.ended,
        last_step=rank.last_step,
        noticed_first=any(end.first for end in own_ends),
        inside=inside,
        order=_first_printed(own_ends),
        aborted_leaving=rank.took_leave and number == signal.SIGABRT,
    )


def _of_text(logged_ends: list[LoggedEnd]) -> RankFailure:
    """The end of one process and its exception, from the whole console."""
    ended = [end for end in logged_ends if end.exit_code is not None or end.signal is not None]
    end = (ended or logged_ends)[0]
    printed = [other.error for other in logged_ends if other.error is not None]
    inside, error = _unwrapped(printed[-1] if printed else None)
    kind, number, code = _kind(end.signal, end.exit_code, error)
    if kind is FailureKind.SECONDARY and error is None and _was_sent_by_stranger(logged_ends):
        kind = FailureKind.KILLED
    return RankFailure(
        kind,
        end.rank,
        end.source,
        _confidence_in(logged_ends),
        pid=end.pid,
        signal=number,
        exit_code=code,
        error=error,
        noticed_first=any(other.first for other in logged_ends),
        inside=inside,
        order=_first_printed(logged_ends),
    )


def _was_sent_by_stranger(ends: Iterable[LoggedEnd]) -> bool:
    """Whether a signal to end the process came before the launcher sent any, and not from it."""
    return any(
        end.first and end.signal in CLOSING_SIGNALS and end.sent_by_launcher is False
        for end in ends
    )


def _unwrapped(error: Error | None) -> tuple[str | None, Error | None]:
    return (None, None) if error is None else (wrapped_in(error), original(error))


def _kind(
    number: int | None, code: int | None, error: Error | None
) -> tuple[FailureKind, int | None, int | None]:
    """Exit code and signal of a process. A code above 128 is a shell's code for a signal."""
    if number is None and code is not None and 128 < code < 128 + signal.NSIG:
        number, code = code - 128, None
    return _named(number, code, error), number, code


def _named(number: int | None, code: int | None, error: Error | None) -> FailureKind:
    if number == signal.SIGKILL:
        return FailureKind.KILLED
    raised = error if error is not None and error.type != FATAL else None
    if raised is not None and is_secondary_failure(raised):
        return FailureKind.SECONDARY  # whatever came while the interpreter went down
    asked = number in CLOSING_SIGNALS
    if raised is not None and (asked or number in (None, signal.SIGABRT)):
        exits = raised.type.rpartition(".")[2] == "SystemExit"
        return FailureKind.EXIT if exits else FailureKind.EXCEPTION
    if asked:
        return FailureKind.SECONDARY
    if number is not None and not (number == signal.SIGABRT and code):
        return FailureKind.SIGNAL
    return FailureKind.EXIT if code is not None else FailureKind.VANISHED


def _with_unlabelled(
    rank_failures: list[RankFailure], logged: tuple[LoggedEnd, ...], case: Case
) -> Iterable[RankFailure]:
    """Assigns tracebacks without a rank to failures without an error, if all of them are from one
    place in the code: a script that fails at import prints one per process, before any rank is
    known."""
    printed = [end.error for end in logged if end.rank is None and end.pid is None and end.error]
    fatal = [error for error in printed if error.type == FATAL]
    raised = [error for error in printed if error.type != FATAL and not is_secondary_failure(error)]
    raised = [error for error in raised if error.message != IN_GRAPH] or raised  # that says nothing
    one_place = len({place(error) for error in raised}) == 1
    lost = [error for error in printed if error.type != FATAL and is_secondary_failure(error)]
    nameless = [
        failure
        for failure in rank_failures
        if failure.kind is FailureKind.EXIT and failure.error is None
    ]
    echoing = nameless if not raised and _one_each(lost, rank_failures, case) else []
    if not raised or not one_place:
        nameless = []
    elif len(raised) > 1 and _all_of_them(raised, rank_failures, case):
        yield _nobodys(raised, logged, everyone=True)
        return
    elif not rank_failures and _failed(case):
        yield _nobodys(raised, logged, everyone=False)
    for failure in rank_failures:
        if failure in nameless:
            inside, error = _unwrapped(raised[-1])
            labelled = replace(failure, kind=FailureKind.EXCEPTION, error=error, inside=inside)
            yield replace(labelled, confidence=TOLD_BY_CONSOLE)
        elif failure in echoing:
            yield replace(failure, kind=FailureKind.SECONDARY, error=lost[-1])
        elif failure.kind is FailureKind.SIGNAL and failure.error is None and len(fatal) == 1:
            yield replace(failure, error=fatal[0])
        else:
            yield failure


def _failed(case: Case) -> bool:
    return bool(case.job.exit_code) or case.job.outcome is Outcome.FAILED


def _all_of_them(raised: list[Error], rank_failures: list[RankFailure], case: Case) -> bool:
    """Whether there are as many tracebacks as processes, and no failure with another reason."""
    others = any(
        failure.error or failure.kind not in (FailureKind.SECONDARY, FailureKind.EXIT)
        for failure in rank_failures
    )
    return not others and _one_each(raised, rank_failures, case)


def _one_each(printed: list[Error], rank_failures: list[RankFailure], case: Case) -> bool:
    return len(printed) >= max(len(rank_failures), case.job.world_size or 0)


def _nobodys(raised: list[Error], logged: Iterable[LoggedEnd], *, everyone: bool) -> RankFailure:
    inside, error = _unwrapped(raised[-1])
    return RankFailure(
        FailureKind.EXCEPTION,
        None,
        "console",
        _confidence_in(logged),
        error=error,
        everyone=everyone,
        inside=inside,
        order=_first_printed(end for end in logged if end.error is raised[-1]),
    )


def _confidence_in(logged_ends: Iterable[LoggedEnd]) -> float:
    is_last_line = all(end.source == EXCERPT for end in logged_ends)
    return TOLD_BY_LAST_LINES if is_last_line else TOLD_BY_CONSOLE


def _first_printed(logged_ends: Iterable[LoggedEnd]) -> int | None:
    return min((end.order for end in logged_ends if end.order is not None), default=None)


def place(error: Error) -> tuple[str, str | None, int | None]:
    return (error.type, error.file, error.line)
