"""Finds which ranks wait for which others, by the unfinished calls in flight-recorder dumps. Pure.

`first_divergence` and `stuck_collectives` judge the waits. Dumps of different ranks were made at
different times, so a call that a dump lacks is not by itself a delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mgpu_doctor.analysis.collectives.process_groups import GroupCalls, RankCalls, is_over
from mgpu_doctor.case.flight_records import Collective, Flight

LEAST_WAIT = 5.0
"""Seconds that a wait must have lasted: ranks do not write their dumps at the same moment."""
GAPS = 2.0
"""How many times the usual pause between calls a wait must exceed to count as long."""
BEYOND_TIMEOUT = 120.0
"""Seconds beyond the collective's timeout. A longer wait is impossible: the file was copied, and
the dump's time is unknown."""
ONE_WAY = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Collectives that may end on one rank before another has called them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that is in a collective that other ranks (`lacking`) have not called."""

    rank: int
    group_calls: GroupCalls
    sequence: int
    entry: Collective
    lacking: tuple[int, ...]
    """Members whose dumps show that they have not called it."""
    seconds: float | None
    """The least seconds that the wait has lasted; None: the dumps have no times."""
    usual: float
    """The usual pause between calls of this rank, in seconds."""
    at_most: float | None
    """The most seconds that it has lasted, by the time of the rank's own dump; None: unknown."""
    timed_out: bool

    @property
    def lasting(self) -> bool:
        """Whether the wait is longer than waits in a running job."""
        if self.timed_out:
            return True
        return self.seconds is not None and self.seconds >= max(LEAST_WAIT, GAPS * self.usual)


def find_waits(groups: Iterable[GroupCalls]) -> tuple[Wait, ...]:
    """Every rank that is in a collective, with those that have not called it."""
    waits = []
    for group_calls in groups:
        settled = _settled(group_calls)
        for rank_calls in group_calls.by_rank.values():
            wait = _wait(group_calls, rank_calls, settled)
            if wait is not None:
                waits.append(wait)
    return tuple(waits)


def find_awaited_ranks(waits: Iterable[Wait]) -> tuple[int, ...]:
    """Ranks that others wait for and that wait for no rank."""
    known = list(waits)
    waiting = {wait.rank for wait in known}
    return tuple(sorted({rank for wait in known for rank in wait.lacking} - waiting))


def find_cycle(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """Ranks that wait for each other in a ring, each in another group; empty: there is no ring.

    If all ranks make their calls in the same order there can be no ring, whenever the dumps were
    made: each link means that one call precedes another, and in a ring a call would precede itself.
    """
    links: dict[int, list[tuple[Wait, int]]] = {}
    for wait in waits:
        for rank in wait.lacking:
            links.setdefault(wait.rank, []).append((wait, rank))
    done: set[int] = set()
    for start in sorted(links):
        ring = _ring(start, links, done)
        if ring:
            return ring
    return ()


def _ring(
    start: int, links: Mapping[int, list[tuple[Wait, int]]], done: set[int]
) -> tuple[Wait, ...]:
    """A ring that is reached from `start`; empty: there is none. Not recursive, because there may
    be thousands of ranks."""
    path: list[tuple[Wait, int]] = []
    ranks = [start]
    open_links = [iter(links[start])]
    while open_links:
        link = next(open_links[-1], None)
        if link is None:
            open_links.pop()
            done.add(ranks.pop())
            del path[-1:]
            continue
        _, onward = link
        if onward in ranks:
            ring = [*path, link][ranks.index(onward) :]
            return tuple(wait for wait, _ in ring)
        if onward in links and onward not in done:
            path.append(link)
            ranks.append(onward)
            open_links.append(iter(links[onward]))
    return ()


def _wait(group_calls: GroupCalls, rank_calls: RankCalls, settled: int) -> Wait | None:
    entry = None if rank_calls.pending is None else rank_calls.entry(rank_calls.pending)
    if entry is None or rank_calls.pending is None:
        return None
    lacking = tuple(
        sorted(
            other.rank
            for other in group_calls.by_rank.values()
            if settled <= other.last < rank_calls.pending
        )
    )
    moments = [_moment(group_calls.by_rank[rank].flight) for rank in (rank_calls.rank, *lacking)]
    return Wait(
        rank=rank_calls.rank,
        group_calls=group_calls,
        sequence=rank_calls.pending,
        entry=entry,
        lacking=lacking,
        seconds=_seconds(entry, rank_calls.flight, moments),
        usual=_usual_pause(rank_calls.flight),
        at_most=_seconds(entry, rank_calls.flight, [rank_calls.flight.at]),
        timed_out=entry.retired is True and entry.state in ("started", "scheduled"),
    )


def _settled(group_calls: GroupCalls) -> int:
    """The last call that has ended on some rank, so that all ranks must have called it: a dump
    without it was made earlier and shows no delay."""
    return max(
        (
            sequence
            for rank_calls in group_calls.by_rank.values()
            for sequence, slot in rank_calls.slots.items()
            if all(
                collective.operation not in ONE_WAY
                and is_over(collective, rank_calls.tracks_operations)
                for collective in slot
            )
        ),
        default=-1,
    )


def _moment(flight: Flight) -> float | None:
    """When the dump was made at the earliest; None: unknown."""
    if flight.at is None:
        return None
    return flight.at - flight.slack


def _seconds(entry: Collective, flight: Flight, moments: list[float | None]) -> float | None:
    since = entry.created if entry.started is None else entry.started
    if since is None or flight.at is None or any(moment is None for moment in moments):
        return None
    if entry.timeout is not None and flight.at - since > entry.timeout + BEYOND_TIMEOUT:
        return None
    return min(moment for moment in moments if moment is not None) - since


def _usual_pause(flight: Flight) -> float:
    """The second longest pause between the rank's calls, seconds: the longest may be the
    warm-up."""
    times = sorted(
        collective.created for collective in flight.collectives if collective.created is not None
    )
    pauses = sorted(b - a for a, b in pairwise(times))
    return pauses[-2] if len(pauses) > 1 else 0.0
