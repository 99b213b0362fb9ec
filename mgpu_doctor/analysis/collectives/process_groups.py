"""Flight-recorder dumps side by side: per process group, what each rank called. Pure.

Sends and receives form groups of two: the n-th send of a rank meets the n-th receive of the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from mgpu_doctor.case.flight_records import Collective, Flight

Slot = tuple[Collective, ...]
"""The entries of one sequence number: several where operations were coalesced."""
DEFAULT_GROUP = "0"
"""torch's name of the group of all ranks."""


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls of one rank in one group, by sequence number."""

    rank: int
    flight: Flight
    slots: Mapping[int, Slot]
    last: int
    """The last sequence number of the rank; -1: none."""
    pending: int | None
    """The first sequence number that was unfinished when the dump was made."""
    tracks_operations: bool = True
    """Whether the recorder follows its operations, see `is_over`."""

    def entry(self, sequence: int) -> Collective | None:
        """The first operation of a sequence number."""
        slot = self.slots.get(sequence)
        return slot[0] if slot else None


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """A process group. `members`: its ranks; if torch does not record them (gloo's sub-groups),
    those that have called something in it, and `complete` is False."""

    group: str
    backend: str | None
    members: tuple[int, ...]
    complete: bool
    by_rank: Mapping[int, RankCalls]

    @property
    def missing(self) -> tuple[int, ...]:
        """Members without a dump."""
        return tuple(rank for rank in self.members if rank not in self.by_rank)


def newest_dumps(flights: Iterable[Flight]) -> dict[int, Flight]:
    """The newest dump of each rank."""
    newest: dict[int, Flight] = {}
    for flight in flights:
        if flight.rank is not None:
            known = newest.get(flight.rank)
            if known is None or (flight.at or 0.0) >= (known.at or 0.0):
                newest[flight.rank] = flight
    return newest


def list_group_calls(newest: Mapping[int, Flight]) -> tuple[GroupCalls, ...]:
    """The groups of a job, by name. `newest`: rank -> its dump."""
    calls = {rank: _by_group(flight) for rank, flight in newest.items()}
    keys = {key for called in calls.values() for key in called}
    result: list[GroupCalls] = []
    for group, backend in sorted(keys, key=lambda key: (key[0], key[1] or "")):
        for members in _memberships(group, newest):
            by_rank = {
                rank: make_rank_calls(rank, newest[rank], calls[rank].get((group, backend), []))
                for rank in (members or newest)
                if rank in newest and (members or (group, backend) in calls[rank])
            }
            if by_rank:
                ranks = members or tuple(sorted(by_rank))
                result.append(GroupCalls(group, backend, ranks, bool(members), by_rank))
    return tuple(result)


def make_rank_calls(rank: int, flight: Flight, called: Iterable[Collective]) -> RankCalls:
    """One rank's calls in a group; the first number is left out where the ring may have lost a
    part of it."""
    ordered = sorted(
        (collective for collective in called if collective.sequence is not None),
        key=lambda collective: collective.sequence or 0,
    )
    slots = {
        sequence: tuple(same)
        for sequence, same in groupby(ordered, key=lambda collective: collective.sequence or 0)
    }
    if flight.lost and len(slots) > 1:
        del slots[min(slots)]
    tracks_operations = any(
        collective.state in ("started", "completed") for collective in flight.collectives
    )
    pending = (
        k
        for k, slot in slots.items()
        if not all(is_over(collective, tracks_operations) for collective in slot)
    )
    return RankCalls(
        rank, flight, slots, max(slots, default=-1), next(pending, None), tracks_operations
    )


def is_over(collective: Collective, tracks_operations: bool) -> bool:
    """Whether the collective had ended.

    `tracks_operations`: the recorder follows its operations, as NCCL's does; then a retired one
    that is not completed has timed out. gloo's (torch 2.13) only retires them.
    """
    return collective.state == "completed" or (not tracks_operations and collective.retired is True)


def _by_group(flight: Flight) -> dict[tuple[str, str | None], list[Collective]]:
    by_group: dict[tuple[str, str | None], list[Collective]] = defaultdict(list)
    for collective in flight.collectives:
        if not collective.p2p:
            by_group[collective.group, collective.backend].append(collective)
    return by_group


def _memberships(group: str, flights: Mapping[int, Flight]) -> list[tuple[int, ...]]:
    """The rank lists that go by this name: torch.distributed.split_group gives several groups one
    name. An empty one: unknown."""
    member_lists = {flight.groups[group] for flight in flights.values() if flight.groups.get(group)}
    if member_lists:
        return sorted(member_lists)
    if group == DEFAULT_GROUP:
        known = [ranks for flight in flights.values() for ranks in flight.groups.values()]
        world = max([*(rank for ranks in known for rank in ranks), *flights]) + 1
        return [tuple(range(world))]
    return [()]


_SEND = re.compile(r"send (\d{1,7})->(\d{1,7})")
_RECEIVE = re.compile(r"recv (\d{1,7})<-(\d{1,7})")
_Way = tuple[str, str | None, int, int]
"""Group, backend, and the ranks (of the job) from and to."""


def pairs(newest: Mapping[int, Flight]) -> tuple[GroupCalls, ...]:
    """One circle for each direction between two ranks, where both dumps hold all that there was:
    a ring that lost its beginning does not show how many there were."""
    ways: dict[_Way, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    whole = {rank for rank, flight in newest.items() if not flight.lost}
    for rank in whole:
        for collective in newest[rank].collectives:
            way = _way(collective, newest[rank]) if collective.p2p else None
            if way is not None and rank in way[2:] and whole.issuperset(way[2:]):
                calls = ways[way][rank]
                calls.append(replace(collective, sequence=len(calls) + 1))
    return tuple(_circle(way, ways[way], newest) for way in sorted(ways, key=str))


def _way(collective: Collective, flight: Flight) -> _Way | None:
    """The sender and the receiver. Torch numbers them within the group; its rank list maps them."""
    ranks = flight.groups.get(collective.group)
    sent, received = _SEND.fullmatch(collective.operation), _RECEIVE.fullmatch(collective.operation)
    ends = sent.groups() if sent else received.groups()[::-1] if received else None
    if ranks is None or ends is None:
        return None
    source, target = (int(end) for end in ends)
    if max(source, target) >= len(ranks):
        return None
    return collective.group, collective.backend, ranks[source], ranks[target]


def _circle(
    way: _Way, calls: Mapping[int, Iterable[Collective]], newest: Mapping[int, Flight]
) -> GroupCalls:
    group, backend, source, target = way
    by_rank = {
        rank: make_rank_calls(rank, newest[rank], calls.get(rank, ())) for rank in (source, target)
    }
    return GroupCalls(group, backend, (source, target), True, by_rank)
