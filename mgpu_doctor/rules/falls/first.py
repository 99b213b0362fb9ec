"""Who fell first: endings of ranks put in order of guilt. Pure.

The first own fall is the culprit, whatever the launcher calls the root: torchrun names the failure
that it noticed first, which after a SIGKILL is often a survivor's lost connection (measured with
torch 2.13 under FSDP2 and tensor parallelism).
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from mgpu_doctor.case.model import Case, State
from mgpu_doctor.rules.falls.falls import (
    FATAL,
    TOLD_BY_CONSOLE,
    VANISHED_ONLY,
    Fall,
    Kind,
    falls,
    place,
)

TOGETHER = 1.0
"""Seconds within which the same signal on several ranks counts as one event. torch.distributed's
agent sends SIGKILL to ranks that ignore its SIGTERM 30 s later: those must not count."""


def first_falls(case: Case) -> tuple[Fall, ...]:
    """The culprits: the first own fall and those that are the same event. Empty: nobody fell, or
    there are only echoes that do not tell who was first, or nothing does (see `undecided`)."""
    found = falls(case)
    own = _own(found)
    if _unordered(own, case):
        return ()
    own = own or [fall for fall in found if fall.kind is Kind.VANISHED]
    own = own or _first_echo(found, case.job.asked)
    if not own:
        return ()
    first = min(own, key=_order if any(fall.order is None for fall in own) else _printed)
    return (first, *(fall for fall in own if fall is not first and _same_event(fall, first)))


def undecided(case: Case) -> tuple[Fall, ...]:
    """Ranks that fell by themselves in different ways, where nothing tells which was first: logs
    of several ranks without time stamps."""
    own = _own(falls(case))
    return tuple(own) if _unordered(own, case) else ()


def victims_of(case: Case, culprits: Iterable[Fall]) -> tuple[int, ...]:
    """Ranks that ended or wait because of the culprits."""
    guilty = {fall.rank for fall in culprits}
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


def _own(found: Iterable[Fall]) -> list[Fall]:
    return [fall for fall in found if fall.kind not in (Kind.ECHO, Kind.VANISHED)]


def _unordered(own: list[Fall], case: Case) -> bool:
    if case.subject.kind != "log" or not own or all(fall.order is not None for fall in own):
        return False
    first = min(own, key=_order)
    alone = all(fall is first or _same_event(fall, first) for fall in own)
    return not alone and not first.noticed_first and any(fall.at is None for fall in own)


def _first_echo(found: tuple[Fall, ...], asked: str | None) -> list[Fall]:
    """Among echoes alone only a signal that came before every other ending tells who was first, or
    one that no launcher sends on its own account while it ends what is left of a job."""
    alone = [fall for fall in found if fall.signal in (signal.SIGHUP, signal.SIGINT)]
    if alone and len(alone) < len(found) and asked is None:
        return [replace(min(alone, key=_order), confidence=TOLD_BY_CONSOLE)]
    timed = sorted((fall for fall in found if fall.at is not None), key=_order)
    if len(timed) < 2 or len(timed) < len(found) or timed[0].signal is None:
        return []
    raised = timed[0].error
    if raised is not None and raised.type != FATAL:
        return []  # it ended by that; the signal came while the interpreter went down
    first, second = timed[0], timed[1]
    if (second.at or 0.0) - (first.at or 0.0) < 0.05 or second.signal is not None:
        return []
    return [replace(first, confidence=VANISHED_ONLY)]


def _order(fall: Fall) -> tuple[float, bool, float]:
    at = float("inf") if fall.at is None else fall.at
    return (at, not fall.noticed_first, float("inf") if fall.rank is None else fall.rank)


def _printed(fall: Fall) -> tuple[int, float]:
    return (fall.order or 0, float("inf") if fall.rank is None else fall.rank)


def _same_event(fall: Fall, first: Fall) -> bool:
    if fall.kind is not first.kind:
        return False
    if fall.error is not None and first.error is not None and fall.kind is Kind.EXCEPTION:
        return place(fall.error) == place(first.error)
    if (fall.signal, fall.exit_code) != (first.signal, first.exit_code):
        return False
    if fall.at is None or first.at is None:
        return fall.kind is Kind.EXIT
    return abs(fall.at - first.at) <= TOGETHER
