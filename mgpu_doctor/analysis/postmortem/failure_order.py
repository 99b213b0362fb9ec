"""Which rank failed first. Pure.

The earliest failure that is not secondary is the culprit, whatever the launcher calls the root
cause: torchrun names the failure that it noticed first, which after a SIGKILL is often a survivor's
lost connection (measured with torch 2.13 under FSDP2 and tensor parallelism).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from mgpu_doctor.analysis.postmortem.rank_failures import (
    FATAL,
    TOLD_BY_CONSOLE,
    VANISHED_ONLY,
    FailureKind,
    RankFailure,
    place,
)
from mgpu_doctor.analysis.postmortem.secondary_failures import is_secondary_failure
from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.model import Case, State

TOGETHER = 1.0
"""Seconds within which the same signal on several ranks counts as one event. torch.distributed's
agent sends SIGKILL to ranks that ignore its SIGTERM 30 s later: those must not count."""
SEEN_LATE = 2.0
"""Seconds by which a process may be gone before that is seen from outside: the kernel first closes
its connections, which others notice, and takes down its memory (0.5 s seen on a busy machine)."""


def find_first_failures(
    rank_failures: tuple[RankFailure, ...], case: Case
) -> tuple[RankFailure, ...]:
    """Returns the first of all failures and those of other ranks that belong to the same event.

    Empty if no rank failed, if all failures are secondary and none is clearly the first, or if the
    order is unknown (`find_unordered_failures`)."""
    own = _own(rank_failures)
    if _unordered(own, case):
        return ()
    own = own or [failure for failure in rank_failures if failure.kind is FailureKind.VANISHED]
    own = own or _first_echo(rank_failures, case.job.asked)
    if not own:
        return ()
    first = min(own, key=_order if any(failure.order is None for failure in own) else _printed)
    return (
        first,
        *(failure for failure in own if failure is not first and _same_event(failure, first)),
    )


def find_unordered_failures(
    rank_failures: tuple[RankFailure, ...], case: Case
) -> tuple[RankFailure, ...]:
    """Ranks that failed by themselves in different ways, if it is unknown which was first: logs
    of several ranks without time stamps."""
    own = _own(rank_failures)
    return tuple(own) if _unordered(own, case) else ()


def list_victims(case: Case, culprits: Iterable[RankFailure]) -> tuple[int, ...]:
    """Ranks that ended or wait because of the culprits; none if the ranks are independent."""
    if are_independent(case.ranks):
        return ()
    guilty = {failure.rank for failure in culprits}
    return tuple(
        sorted(
            rank.rank
            for rank in case.ranks
            if rank.rank is not None
            and rank.rank not in guilty
            and rank.state is not State.MISSING
            and not (rank.state is State.EXITED and not rank.exit_code)
        )
    )


def find_latest_end(failure: RankFailure, case: Case) -> float | None:
    """The latest time at which a rank without an error of its own can have failed, in seconds since
    the epoch: when its process was found to be gone, or ranks of its host lost their connection to
    it. None: its own error has the time, or it is unknown."""
    gone = failure.at
    if gone is None or (failure.error is not None and failure.error.at is not None):
        return None
    lost = (
        rank.error.at
        for rank in case.ranks
        if rank.host == failure.host
        and rank.error is not None
        and rank.error.at is not None
        and gone - SEEN_LATE <= rank.error.at < gone
        and is_secondary_failure(rank.error)
    )
    return min((gone, *lost))


def _own(rank_failures: Iterable[RankFailure]) -> list[RankFailure]:
    return [
        failure
        for failure in rank_failures
        if failure.kind not in (FailureKind.SECONDARY, FailureKind.VANISHED)
    ]


def _unordered(own: list[RankFailure], case: Case) -> bool:
    if case.subject.kind != "log" or not own or all(failure.order is not None for failure in own):
        return False
    first = min(own, key=_order)
    alone = all(failure is first or _same_event(failure, first) for failure in own)
    return not alone and not first.noticed_first and any(failure.at is None for failure in own)


def _first_echo(rank_failures: tuple[RankFailure, ...], asked: str | None) -> list[RankFailure]:
    """Among echoes alone only a signal before every other ending shows which rank was first, or
    one that no launcher sends on its own account while it ends what is left of a job."""
    alone = [
        failure for failure in rank_failures if failure.signal in (signal.SIGHUP, signal.SIGINT)
    ]
    if alone and len(alone) < len(rank_failures) and asked is None:
        return [replace(min(alone, key=_order), confidence=TOLD_BY_CONSOLE)]
    timed = sorted((failure for failure in rank_failures if failure.at is not None), key=_order)
    if len(timed) < 2 or len(timed) < len(rank_failures) or timed[0].signal is None:
        return []
    raised = timed[0].error
    if raised is not None and raised.type != FATAL:
        return []  # it ended by that; the signal came while the interpreter went down
    first, second = timed[0], timed[1]
    if (second.at or 0.0) - (first.at or 0.0) < 0.05 or second.signal is not None:
        return []
    return [replace(first, confidence=VANISHED_ONLY)]


def _order(failure: RankFailure) -> tuple[float, bool, float]:
    at = float("inf") if failure.at is None else failure.at
    return (at, not failure.noticed_first, float("inf") if failure.rank is None else failure.rank)


def _printed(failure: RankFailure) -> tuple[int, float]:
    return (failure.order or 0, float("inf") if failure.rank is None else failure.rank)


def _same_event(failure: RankFailure, first: RankFailure) -> bool:
    if failure.kind is not first.kind:
        return False
    if (
        failure.error is not None
        and first.error is not None
        and failure.kind is FailureKind.EXCEPTION
    ):
        return place(failure.error) == place(first.error)
    if (failure.signal, failure.exit_code) != (first.signal, first.exit_code):
        return False
    if failure.at is None or first.at is None:
        return failure.kind is FailureKind.EXIT
    return abs(failure.at - first.at) <= TOGETHER
