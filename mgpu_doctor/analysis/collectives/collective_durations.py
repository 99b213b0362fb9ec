"""How long each collective took from every rank's arrival to its end, by flight recorders. Pure.

All ranks leave a collective together. So the rank that spends the least time in it arrived last,
that time is the transfer, and what the other ranks spend beyond it is their wait. No clocks of
different ranks are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from mgpu_doctor.analysis.collectives.collective_waits import ONE_WAY
from mgpu_doctor.analysis.collectives.process_groups import (
    GroupCalls,
    RankCalls,
    list_group_calls,
    newest_dumps,
)
from mgpu_doctor.case.flight_records import Collective, Flight

LEAST_LEAD = 50e-6
"""Seconds by which one rank must be later than every other to count as the last to arrive: events
on a device are exact to about 0.5 µs, and ranks do not leave at the very same moment."""

UNEVEN = ("all_to_all", "alltoall", "_all_to_all", "_alltoall")
"""Beginnings of the names of collectives in which each rank may move another amount of data."""


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective that was timed on all ranks of its group."""

    sequence: int
    call: Collective
    """The call, as one of the ranks recorded it."""
    seconds: Mapping[int, float]
    """Rank -> seconds from its arrival to the end."""

    @property
    def transfer(self) -> float:
        """Seconds from the last arrival to the end, at most."""
        return min(self.seconds.values())

    @property
    def longest(self) -> float:
        """Seconds from the first arrival to the end."""
        return max(self.seconds.values())

    @property
    def last(self) -> int | None:
        """The rank that arrived last; None: several arrived at about the same time."""
        ordered = sorted(self.seconds.items(), key=lambda item: item[1])
        (rank, least), (_, second) = ordered[:2]
        return rank if second - least >= LEAST_LEAD else None

    def wait_of(self, rank: int) -> float:
        """Seconds that a rank waited for the last one."""
        return self.seconds[rank] - self.transfer


@dataclass(frozen=True)
class GroupTimes:
    """The timed collectives of a process group, in order."""

    group: str
    backend: str | None
    ranks: tuple[int, ...]
    collectives: tuple[TimedCollective, ...]
    untimed: int
    """Collectives between the first and the last that were not timed on all ranks."""
    window: float | None
    """Seconds from the call of the first to the call of the last, mean of the ranks; None: unknown
    or too short."""

    @cached_property
    def transfer(self) -> float:
        """Seconds of all transfers within the window."""
        return sum(collective.transfer for collective in self._within)

    @cached_property
    def wait(self) -> float:
        """Seconds of all waits within the window, mean of the ranks."""
        waits = (one.wait_of(rank) for one in self._within for rank in self.ranks)
        return sum(waits) / len(self.ranks)

    @property
    def transfer_share(self) -> float | None:
        """Share of the time in which data moves, 0..1; None: unknown."""
        return self._share(self.transfer)

    @property
    def wait_share(self) -> float | None:
        """Share of the time in which a rank waits for the last one, 0..1, mean of the ranks."""
        return self._share(self.wait)

    @cached_property
    def last_arrivals(self) -> Counter[int]:
        """Rank -> number of collectives at which it arrived last."""
        lasts = (collective.last for collective in self.collectives)
        return Counter(rank for rank in lasts if rank is not None)

    def worst(self, count: int) -> tuple[TimedCollective, ...]:
        """The collectives that took longest from the first arrival to the end."""
        ordered = sorted(self.collectives, key=lambda one: (-one.longest, one.sequence))
        return tuple(ordered[:count])

    @property
    def _within(self) -> tuple[TimedCollective, ...]:
        """The window ends when the last one is called."""
        return self.collectives if self.window is None else self.collectives[:-1]

    def _share(self, seconds: float) -> float | None:
        return None if self.window is None else min(1.0, seconds / self.window)


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """`groups`: those in which most time goes to collectives come first."""

    groups: tuple[GroupTimes, ...]
    unmatched: int
    """Groups that have timed collectives, but none that was timed on all of their ranks."""


def time_collectives(flights: Iterable[Flight]) -> CollectiveTimes | None:
    """The times of a job's collectives; None: no recorder timed any.

    Sends, receives and collectives that some ranks leave early (broadcast, reduce, gather, scatter,
    all-to-all) are left out."""
    flights = tuple(flights)
    if not any(
        collective.duration is not None for flight in flights for collective in flight.collectives
    ):
        return None
    found = [
        _time_group(group_calls)
        for group_calls in list_group_calls(newest_dumps(flights))
        if _is_timed(group_calls)
    ]
    groups = [group for group in found if group is not None]
    groups.sort(key=lambda group: (-(group.transfer + group.wait), group.group))
    return CollectiveTimes(tuple(groups), len(found) - len(groups))


def _is_timed(group_calls: GroupCalls) -> bool:
    """Whether the group has several ranks, and one of them timed a collective."""
    return len(group_calls.members) > 1 and any(
        _durations(rank_calls) for rank_calls in group_calls.by_rank.values()
    )


def _durations(rank_calls: RankCalls) -> dict[int, float]:
    """Sequence number -> seconds from the rank's arrival to the end."""
    timed = {}
    for sequence, slot in rank_calls.slots.items():
        seconds = [one.duration for one in slot if one.duration is not None]
        if seconds and not any(_may_leave_early(one.operation) for one in slot):
            timed[sequence] = max(seconds)
    return timed


def _may_leave_early(operation: str) -> bool:
    """Whether some ranks may be through before the others."""
    return operation in ONE_WAY or operation.startswith(UNEVEN)


def _time_group(group_calls: GroupCalls) -> GroupTimes | None:
    if group_calls.missing:
        return None
    durations = {rank: _durations(rank_calls) for rank, rank_calls in group_calls.by_rank.items()}
    shared = sorted(set.intersection(*map(set, durations.values())))
    first_calls = next(iter(group_calls.by_rank.values()))
    collectives = tuple(
        TimedCollective(
            sequence,
            first_calls.slots[sequence][0],
            {rank: timed[sequence] for rank, timed in durations.items()},
        )
        for sequence in shared
        if _is_same_call(group_calls, sequence)
    )
    if not collectives:
        return None
    first, last = collectives[0].sequence, collectives[-1].sequence
    called = {
        seq
        for rank_calls in group_calls.by_rank.values()
        for seq in rank_calls.slots
        if first <= seq <= last
    }
    return GroupTimes(
        group=group_calls.group,
        backend=group_calls.backend,
        ranks=tuple(sorted(group_calls.by_rank)),
        collectives=collectives,
        untimed=len(called) - len(collectives),
        window=_window(group_calls, first, last),
    )


def _is_same_call(group_calls: GroupCalls, sequence: int) -> bool:
    """Whether all ranks called one operation under this number."""
    return (
        len(
            {rank_calls.slots[sequence][0].operation for rank_calls in group_calls.by_rank.values()}
        )
        == 1
    )


def _window(group_calls: GroupCalls, first: int, last: int) -> float | None:
    spans = []
    for rank_calls in group_calls.by_rank.values():
        begin, end = rank_calls.slots[first][0].created, rank_calls.slots[last][0].created
        if begin is None or end is None or end <= begin:
            return None
        spans.append(end - begin)
    return sum(spans) / len(spans)
