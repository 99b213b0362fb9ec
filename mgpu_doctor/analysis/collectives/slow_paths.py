"""Which part of the network between hosts is slow, by the times of process groups that span hosts.
Pure.

Jobs with hierarchical groups have one group within each host, and one of the k-th rank of every
host: a rail, which often has network interfaces and a switch of its own. Groups of the same shape
that make the same calls take equally long, unless the network between their ranks differs. A
collective's transfer begins with the arrival of its last rank, so a rank that is late does not
lengthen it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from mgpu_doctor.analysis.collectives.collective_durations import CollectiveTimes, GroupTimes
from mgpu_doctor.case.model import Rank

SLOWER = 2.0
"""Factor by which the fastest of the slow groups must exceed the slowest of the others. A choice:
groups over equal networks differ by tens of percent."""
LEAST_EXCESS = 100e-6
"""Seconds per collective by which it must exceed it, too: the start of a kernel takes tens of
microseconds. A choice."""
LEAST_CALLS = 8
"""Calls of a kind, from which a group is compared. A choice: quartiles of fewer are single
calls."""
LEAST_OTHERS = 2
"""Groups that must be fast: of two groups alone, either may be the usual one."""
Kind = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]
"""Operation, shapes of its inputs, and types: equal ones move equally much data."""


@dataclass(frozen=True, slots=True)
class SpanningGroup:
    """A process group whose ranks are on several hosts, at most one on each."""

    times: GroupTimes
    hosts: frozenset[str]
    rail: int | None
    """The local rank of all of its ranks; None: unknown, or they differ."""
    seconds: float
    """Of a transfer: the median, mean of the kinds of calls."""
    low: float
    high: float
    """The same of the lower and upper quartiles."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.times.ranks


@dataclass(frozen=True, slots=True)
class SlowPath:
    """A part of the network that is slow: rails, or what is between two sets of hosts."""

    slow: tuple[SpanningGroup, ...]
    fast: tuple[SpanningGroup, ...]
    usual: float
    """Seconds of the fast groups for the same calls, median."""
    rails: tuple[int, ...]
    """Empty: it is not a matter of rails."""
    sides: tuple[tuple[str, ...], ...]
    """Two sets of hosts, between which it is slow; empty: between all hosts of the slow groups."""
    saved: float | None
    """Share of the time, 0..1, that transfers as long as the others' would save, at most; None:
    unknown."""
    within_hosts: bool
    """Whether groups within hosts were timed, and none of them is slow: then the slow groups' ranks
    move data as fast as others to their neighbours."""


def find_slow_path(times: CollectiveTimes | None, ranks: Iterable[Rank]) -> SlowPath | None:
    """None: no part of the network is known to be slow, or the groups do not show which one."""
    if times is None:
        return None
    placed = {rank.rank: rank for rank in ranks if rank.rank is not None}
    spanning, inner = _sort_groups(times.groups, placed)
    for groups in spanning:
        parts = _split(_measure(groups, placed))
        place = _locate(*parts) if parts is not None else None
        if parts is None or place is None:
            continue
        slow, fast = parts
        own = {rank for group in slow for rank in group.ranks}
        compared = [_measure(some, placed) for some in inner]
        if any(_has_slow(some, own) for some in compared):
            return None  # these ranks are slow within their hosts, too: not the network
        usual = float(np.median([group.seconds for group in fast]))
        heard = {rank for some in compared if len(some) > 1 for one in some for rank in one.ranks}
        return SlowPath(slow, fast, usual, *place, _saved(slow, usual), own <= heard)
    return None


def _sort_groups(
    groups: Iterable[GroupTimes], placed: Mapping[int, Rank]
) -> tuple[list[list[GroupTimes]], list[list[GroupTimes]]]:
    """The groups with one rank on each of several hosts, and those within a host, each by size.
    Others, and those with a rank whose host is unknown, are left out."""
    spanning: dict[int, list[GroupTimes]] = defaultdict(list)
    inner: dict[int, list[GroupTimes]] = defaultdict(list)
    for group in groups:
        if not all(rank in placed and placed[rank].host for rank in group.ranks):
            continue
        hosts = {placed[rank].host for rank in group.ranks}
        if len(hosts) == len(group.ranks):
            spanning[len(group.ranks)].append(group)
        elif len(hosts) == 1:
            inner[len(group.ranks)].append(group)
    return [spanning[size] for size in sorted(spanning)], [inner[size] for size in sorted(inner)]


def _measure(groups: Sequence[GroupTimes], placed: Mapping[int, Rank]) -> tuple[SpanningGroup, ...]:
    """The groups with the seconds of the calls that all of them made; empty if there are none."""
    by_kind = [_transfers(group) for group in groups]
    shared = set.intersection(*map(set, by_kind)) if by_kind else set()
    if not shared:
        return ()
    measured = []
    for group, transfers in zip(groups, by_kind, strict=True):
        quartiles = [np.percentile(transfers[kind], (25, 50, 75)) for kind in shared]
        low, middle, high = (float(seconds) for seconds in np.mean(quartiles, axis=0))
        rails = {placed[rank].local_rank for rank in group.ranks}
        rail = rails.pop() if len(rails) == 1 else None
        hosts = frozenset(placed[rank].host for rank in group.ranks)
        measured.append(SpanningGroup(group, hosts, rail, middle, low, high))
    return tuple(measured)


def _transfers(group: GroupTimes) -> dict[Kind, list[float]]:
    """Kind of call -> seconds of each; those that were called often enough."""
    by_kind: dict[Kind, list[float]] = defaultdict(list)
    for one in group.collectives:
        by_kind[one.call.operation, one.call.inputs, one.call.dtypes].append(one.transfer)
    return {kind: seconds for kind, seconds in by_kind.items() if len(seconds) >= LEAST_CALLS}


def _split(
    groups: Sequence[SpanningGroup],
) -> tuple[tuple[SpanningGroup, ...], tuple[SpanningGroup, ...]] | None:
    """The slow groups and the others, parted where two neighbours in speed differ most; None: they
    do not differ enough."""
    ordered = sorted(groups, key=lambda group: group.seconds)
    if len(ordered) <= LEAST_OTHERS or ordered[0].seconds <= 0:
        return None
    ratios = [b.seconds / a.seconds for a, b in pairwise(ordered)]
    at = int(np.argmax(ratios)) + 1
    fast, slow = tuple(ordered[:at]), tuple(ordered[at:])
    apart = slow[0].seconds - fast[-1].seconds
    overlap = min(group.low for group in slow) <= max(group.high for group in fast)
    if ratios[at - 1] < SLOWER or apart < LEAST_EXCESS or overlap or len(fast) < LEAST_OTHERS:
        return None
    return slow, fast


def _has_slow(groups: Sequence[SpanningGroup], ranks: set[int]) -> bool:
    """Whether one of the slow groups among these has one of the ranks."""
    parts = _split(groups)
    return parts is not None and any(not ranks.isdisjoint(group.ranks) for group in parts[0])


_Place = tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]


def _locate(slow: Sequence[SpanningGroup], fast: Sequence[SpanningGroup]) -> _Place | None:
    """The rails and the two sides of what all slow groups use and no fast one; None: there is no
    such thing, or several."""
    rails = _find_rails(slow, fast)
    sides = _find_sides(slow, fast)
    if rails and sides:
        return None
    if rails:
        return rails, ()
    if sides:
        return (), sides
    pair = _find_pair(slow, fast)
    return None if pair is None else ((), pair)


def _find_rails(slow: Sequence[SpanningGroup], fast: Sequence[SpanningGroup]) -> tuple[int, ...]:
    """The rails of the slow groups, if no fast group is of these, and most rails are fast."""
    own = {group.rail for group in slow if group.rail is not None}
    others = {group.rail for group in fast if group.rail is not None}
    known = all(group.rail is not None for group in (*slow, *fast))
    if not known or own & others or len(others) < LEAST_OTHERS or len(own) >= len(others):
        return ()
    return tuple(sorted(own))


def _find_sides(
    slow: Sequence[SpanningGroup], fast: Sequence[SpanningGroup]
) -> tuple[tuple[str, ...], ...]:
    """The two sets of hosts between which all slow groups go, and no fast one; empty: the fast
    groups connect hosts of a slow one, or there are more than two sets."""
    side: dict[str, frozenset[str]] = {}
    for group in (*slow, *fast):
        side.update({host: frozenset((host,)) for host in group.hosts if host not in side})
    for group in fast:
        joint = frozenset[str]().union(*(side[host] for host in group.hosts))
        side.update(dict.fromkeys(joint, joint))
    crossed = [{side[host] for host in group.hosts} for group in slow]
    touched = frozenset[frozenset[str]]().union(*crossed)
    if len(touched) != 2 or any(len(sides) < 2 for sides in crossed):
        return ()
    return tuple(sorted(tuple(sorted(hosts)) for hosts in touched))


def _find_pair(
    slow: Sequence[SpanningGroup], fast: Sequence[SpanningGroup]
) -> tuple[tuple[str, ...], ...] | None:
    """The only two hosts that are in all slow groups and together in no fast one."""
    common = sorted(frozenset.intersection(*(group.hosts for group in slow)))
    pairs = [
        pair
        for pair in combinations(common, 2)
        if not any(group.hosts.issuperset(pair) for group in fast)
    ]
    return tuple((host,) for host in pairs[0]) if len(pairs) == 1 else None


def _saved(slow: Sequence[SpanningGroup], usual: float) -> float | None:
    """What the slowest group would save: its share of the time, less that of a usual one."""
    worst = max(slow, key=lambda group: group.seconds)
    share = worst.times.transfer_share
    return None if share is None else share * max(0.0, 1 - usual / worst.seconds)
