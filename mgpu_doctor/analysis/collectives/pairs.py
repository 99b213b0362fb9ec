"""Sends and receives, as circles of two: the n-th send of a rank meets the n-th receive of the
other. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mgpu_doctor.analysis.collectives.circles import Circle, lane
from mgpu_doctor.case.flights import Collective, Flight

_SEND = re.compile(r"send (\d{1,7})->(\d{1,7})")
_RECEIVE = re.compile(r"recv (\d{1,7})<-(\d{1,7})")
_Way = tuple[str, str | None, int, int]
"""Group, backend, and the ranks (of the job) from and to."""


def pairs(newest: Mapping[int, Flight]) -> tuple[Circle, ...]:
    """One circle for each direction between two ranks, where both dumps hold all that there was:
    a ring that has lost its beginning does not tell how many there were."""
    ways: dict[_Way, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    whole = {rank for rank, flight in newest.items() if not flight.lost}
    for rank in whole:
        for one in newest[rank].collectives:
            way = _way(one, newest[rank]) if one.p2p else None
            if way is not None and rank in way[2:] and whole.issuperset(way[2:]):
                calls = ways[way][rank]
                calls.append(replace(one, sequence=len(calls) + 1))
    return tuple(_circle(way, ways[way], newest) for way in sorted(ways, key=str))


def _way(one: Collective, flight: Flight) -> _Way | None:
    """Torch counts within the group; the group's own list tells who that is."""
    ranks = flight.groups.get(one.group)
    sent, received = _SEND.fullmatch(one.operation), _RECEIVE.fullmatch(one.operation)
    ends = sent.groups() if sent else received.groups()[::-1] if received else None
    if ranks is None or ends is None:
        return None
    source, target = (int(end) for end in ends)
    if max(source, target) >= len(ranks):
        return None
    return one.group, one.backend, ranks[source], ranks[target]


def _circle(
    way: _Way, calls: Mapping[int, Iterable[Collective]], newest: Mapping[int, Flight]
) -> Circle:
    group, backend, source, target = way
    lanes = {rank: lane(rank, newest[rank], calls.get(rank, ())) for rank in (source, target)}
    return Circle(group, backend, (source, target), True, lanes)
