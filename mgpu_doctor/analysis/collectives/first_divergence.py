"""The first divergence of ranks' collectives in flight-recorder dumps, or why there is none.
Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mgpu_doctor.analysis.collectives.collective_mismatch import first_clash, silent_shift
from mgpu_doctor.analysis.collectives.collective_waits import (
    LEAST_WAIT,
    Wait,
    find_awaited_ranks,
    find_waits,
)
from mgpu_doctor.analysis.collectives.divergence import Divergence
from mgpu_doctor.analysis.collectives.process_groups import list_group_calls, newest_dumps, pairs
from mgpu_doctor.analysis.collectives.stuck_collectives import apart, behind, in_ring, undumped
from mgpu_doctor.case.flight_records import Flight


def diverged(flights: Iterable[Flight]) -> Divergence | None:
    """The first divergence; None if there is none, or if it may be a mere delay.

    Dumps of several ranks are never made at one moment: that one rank is some calls ahead of
    another means nothing until it has waited longer than it usually does.
    """
    newest = newest_dumps(flights)
    if len(newest) < 2:
        return None
    around = list_group_calls(newest)
    waits = find_waits((*around, *pairs(newest)))
    clashes = [
        divergence for group_calls in around if (divergence := first_clash(group_calls)) is not None
    ]
    if clashes:
        return _with_waits(min(clashes, key=_created), waits)
    blocked = in_ring(waits) or behind(waits) or undumped(around, waits) or apart(around, waits)
    if blocked is not None:
        return blocked
    return next(
        (
            divergence
            for group_calls in around
            if (divergence := silent_shift(group_calls)) is not None
        ),
        None,
    )


def _created(divergence: Divergence) -> float:
    expected = divergence.expected
    return float("inf") if expected is None or expected.created is None else expected.created


def _with_waits(divergence: Divergence, waits: Sequence[Wait]) -> Divergence:
    inside = [wait for wait in waits if wait.group_calls.group == divergence.group]
    seconds = [wait.seconds for wait in inside if wait.lasting and wait.seconds is not None]
    return replace(
        divergence,
        waiting=tuple(sorted({wait.rank for wait in waits})),
        seconds=max(seconds, default=None),
        is_blocked=any(wait.lasting for wait in inside),
    )


ALL_TOGETHER = (
    "hand over the dumps of all ranks together, each under a name that ends with its rank "
    "(`nccl_trace_rank_3`)"
)
LATER = "dump all ranks again half a minute later, if the job is still blocked there"
MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Doubt:
    reason: str
    remedy: str


def doubt(flights: Iterable[Flight]) -> Doubt | None:
    """Why dumps without a divergence are inconclusive; None if they are not, or without dumps."""
    listed = list(flights)
    if not listed:
        return None
    newest = newest_dumps(listed)
    if not newest:
        return Doubt("the dumps do not say which ranks they belong to", ALL_TOGETHER)
    if len(newest) == 1:
        return Doubt("only one rank's dump is here, and one cannot be compared", ALL_TOGETHER)
    if sum(bool(flight.collectives) for flight in newest.values()) < 2:
        reason = "the dumps hold no collectives: the recorder was off, or had seen none"
        return Doubt(reason, "let TORCH_FR_BUFFER_SIZE be 2000 or more")
    around = list_group_calls(newest)
    missing = sorted({rank for group_calls in around for rank in group_calls.missing})
    if missing:
        return Doubt(f"there is no dump of rank {_named(missing)}", ALL_TOGETHER)
    return _in_passing(find_waits(around))


def _in_passing(waits: Iterable[Wait]) -> Doubt | None:
    """The doubt about a wait that may be a hang, or a moment of a running job."""
    listed = list(waits)
    late = set(find_awaited_ranks(listed))
    for wait in listed:
        behind = sorted(late & set(wait.lacking))
        if behind and wait.at_most is not None and wait.at_most >= LEAST_WAIT:
            known = max(0.0, wait.seconds or 0.0)
            return Doubt(
                f"rank {wait.rank} was in {_call(wait)}, which rank {_named(behind)} had not "
                f"called, for {known:.0f} to {wait.at_most:.0f} s: that may be a moment of a job "
                "that moves",
                LATER,
            )
    return None


def _call(wait: Wait) -> str:
    site = wait.entry.site
    line = f":{site[1]}" if site is not None and site[1] is not None else ""
    at = f" at {os.path.basename(site[0])}{line}" if site is not None else ""
    return f"{wait.entry.operation}{at}"


def _named(ranks: list[int]) -> str:
    more = " and more" if len(ranks) > MOST_NAMED else ""
    return ", ".join(map(str, ranks[:MOST_NAMED])) + more
