"""When the rank that fell first ended, so that it is not told after what came of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mgpu_doctor.case.model import Case
from mgpu_doctor.rules.falls.echoes import is_echo
from mgpu_doctor.rules.falls.first import first_falls

SEEN_LATE = 2.0
"""Seconds by which a process may be gone before that is seen from outside: the kernel first closes
its connections, which others notice, and takes down its memory (0.5 s seen on a busy machine)."""


def fell_at(case: Case) -> Mapping[tuple[int | None, int | None], float]:
    """(rank, pid) -> when it ended at the latest (seconds since the epoch), for ranks that fell
    first and left no error of their own: seen from outside, or by others of its host, who lost
    their connection to it."""
    found = {}
    for fall in first_falls(case):
        if fall.at is None or (fall.error is not None and fall.error.at is not None):
            continue
        lost = [
            rank.error.at
            for rank in case.ranks
            if rank.host == fall.host
            and rank.error is not None
            and rank.error.at is not None
            and fall.at - SEEN_LATE <= rank.error.at < fall.at
            and is_echo(rank.error)
        ]
        found[fall.rank, fall.pid] = min([fall.at, *lost])
    return found
