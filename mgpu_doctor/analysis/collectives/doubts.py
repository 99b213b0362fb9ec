"""Why flight-recorder dumps decide nothing, and what would let them. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.collectives.circles import circles, newest_dumps
from mgpu_doctor.analysis.collectives.waits import LEAST_WAIT, Wait, awaited, find_waits
from mgpu_doctor.case.flights import Flight

ALL_TOGETHER = (
    "hand over the dumps of all ranks together, each under a name that ends with its rank "
    "(`nccl_trace_rank_3`)"
)
LATER = "dump all ranks again half a minute later, if the job still stands there"
MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Doubt:
    reason: str
    remedy: str


def doubt(flights: Iterable[Flight]) -> Doubt | None:
    """Why the dumps, in which no divergence was found, are not the whole truth; None where they
    are, or where there are none."""
    listed = list(flights)
    if not listed:
        return None
    newest = newest_dumps(listed)
    if not newest:
        return Doubt("the dumps do not tell of which ranks they are", ALL_TOGETHER)
    if len(newest) == 1:
        return Doubt("only one rank's dump is here, and one cannot be compared", ALL_TOGETHER)
    if sum(bool(flight.collectives) for flight in newest.values()) < 2:
        reason = "the dumps hold no collectives: the recorder was off, or had seen none"
        return Doubt(reason, "let TORCH_FR_BUFFER_SIZE be 2000 or more")
    around = circles(newest)
    missing = sorted({rank for circle in around for rank in circle.missing})
    if missing:
        return Doubt(f"there is no dump of rank {_named(missing)}", ALL_TOGETHER)
    return _in_passing(find_waits(around))


def _in_passing(waits: Iterable[Wait]) -> Doubt | None:
    """A wait that may be a hang, or a moment of a job that moves."""
    listed = list(waits)
    late = set(awaited(listed))
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
