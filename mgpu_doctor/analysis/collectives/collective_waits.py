"""Which ranks wait for which others, by the unfinished calls in flight-recorder dumps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from mgpu_doctor.analysis.collectives.process_groups import Circle, Lane, is_over
from mgpu_doctor.case.flight_records import Collective, Flight

LEAST_WAIT = 5.0
"""Seconds that a wait must have lasted: the dumps of ranks are not made at one moment."""
GAPS = 2.0
"""A wait is longer than usual from this many times the usual pause between calls."""
BEYOND_TIMEOUT = 120.0
"""Seconds beyond the collective's timeout. A longer wait would have ended: the dump's time is then
that of a copied file, and unknown."""
ONE_WAY = frozenset({"broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "gather", "scatter"})
"""Collectives that may be over on one rank before another has called them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that is in a collective which others have not called."""

    rank: int
    circle: Circle
    sequence: int
    entry: Collective
    lacking: tuple[int, ...]
    """Members whose dumps show that they have not called it."""
    seconds: float | None
    """Seconds at least; None: the dumps have no time."""
    usual: float
    """The usual pause between calls of this rank, in seconds."""
    at_most: float | None
    """Seconds at most, by the time of the rank's own dump; None: unknown."""
    timed_out: bool

    @property
    def lasting(self) -> bool:
        """Whether the wait is longer than waits in a running job."""
        if self.timed_out:
            return True
        return self.seconds is not None and self.seconds >= max(LEAST_WAIT, GAPS * self.usual)


def find_waits(circles: Iterable[Circle]) -> tuple[Wait, ...]:
    """Every rank that is in a collective, with those that have not called it."""
    waits = []
    for circle in circles:
        settled = _settled(circle)
        for lane in circle.lanes.values():
            wait = _wait(circle, lane, settled)
            if wait is not None:
                waits.append(wait)
    return tuple(waits)


def awaited(waits: Iterable[Wait]) -> tuple[int, ...]:
    """Ranks that others wait for and that wait for no rank."""
    known = list(waits)
    waiting = {wait.rank for wait in known}
    return tuple(sorted({rank for wait in known for rank in wait.lacking} - waiting))


def cycle(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """Ranks that wait for each other in a ring, each in another group; empty: there is none.

    Calls that all ranks make in one order give none, whenever the dumps were made: each link says
    that a call came before another, and a ring would have one before itself.
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
    """A ring that begins at `start`; empty: none. Without recursion: there may be thousands of
    ranks."""
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


def _wait(circle: Circle, lane: Lane, settled: int) -> Wait | None:
    entry = None if lane.pending is None else lane.entry(lane.pending)
    if entry is None or lane.pending is None:
        return None
    lacking = tuple(
        sorted(
            other.rank for other in circle.lanes.values() if settled <= other.last < lane.pending
        )
    )
    moments = [_moment(circle.lanes[rank].flight) for rank in (lane.rank, *lacking)]
    return Wait(
        rank=lane.rank,
        circle=circle,
        sequence=lane.pending,
        entry=entry,
        lacking=lacking,
        seconds=_seconds(entry, lane.flight, moments),
        usual=_usual_pause(lane.flight),
        at_most=_seconds(entry, lane.flight, [lane.flight.at]),
        timed_out=entry.retired is True and entry.state in ("started", "scheduled"),
    )


def _settled(circle: Circle) -> int:
    """The last call that is over on some rank and that no rank can have missed: a dump without it
    was made earlier, and shows no delay."""
    return max(
        (
            sequence
            for lane in circle.lanes.values()
            for sequence, slot in lane.slots.items()
            if all(
                collective.operation not in ONE_WAY and is_over(collective, lane.tracks_operations)
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
    """The second longest pause between its calls: the longest may be a warm-up."""
    times = sorted(
        collective.created for collective in flight.collectives if collective.created is not None
    )
    pauses = sorted(b - a for a, b in pairwise(times))
    return pauses[-2] if len(pauses) > 1 else 0.0
