"""Which ranks a job has on this host, which of them are unnamed, and which are not there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mgpu_probes.outside.jobs import launchers
from mgpu_probes.outside.jobs.groups import Group
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.place import Place
from mgpu_probes.outside.jobs.unnamed import UNREADABLE

MOST_MISSING = 4096


def number_by_order(machine: Machine, group: Group) -> None:
    """Names the ranks that nothing tells by the order of their start, where all that their launcher
    started on this host are there and those that are known agree with it."""
    for parent in (*_launchers(machine, group), *group.starters):
        below = {pid: _child_of(machine, parent, pid) for pid in group.seats}
        started = sorted(
            (pid for pid, child in below.items() if child is not None),
            key=lambda pid: machine.entries[below[pid] or pid].started,
        )
        places = [group.seats[pid] for pid in started]
        known = [seat for seat in places if seat.rank is not None]
        offset = _offset(places)
        if len(known) == len(places) or offset is None:
            continue
        size = _started_here(group, known) if known else launchers.count(machine.command(parent))
        world = known[0].world_size if known else size
        for index, pid in enumerate(started) if size == len(started) else ():
            if group.seats[pid].rank is None:
                group.seats[pid] = replace(
                    UNREADABLE, rank=offset + index, local_rank=index, world_size=world
                )


def _started_here(group: Group, known: list[Place]) -> int | None:
    """How many ranks the launcher of these has to start on this host."""
    if known[0].local_world_size is not None:
        return known[0].local_world_size
    wanted = expected(group)
    return None if wanted is None else len(wanted)


def expected(group: Group) -> tuple[int, ...] | None:
    """The ranks that this host should have; None: nothing tells."""
    seats = list(group.seats.values())
    told = [seat for seat in seats if seat.rank is not None and seat.world_size is not None]
    for seat in told:
        if seat.one_host:
            return tuple(range(min(seat.world_size or 0, MOST_MISSING)))
    numbers: set[int] = set()
    for seat in told:
        if seat.local_world_size is None or seat.local_rank is None or seat.rank is None:
            return None
        first = seat.rank - seat.local_rank
        numbers.update(range(first, first + min(seat.local_world_size, MOST_MISSING)))
    return tuple(sorted(numbers)) or None


def missing(group: Group, wanted: Iterable[int]) -> tuple[int, ...]:
    """Empty where ranks that nothing names could be those that are not there."""
    if any(seat.rank is None and not seat.beside for seat in group.seats.values()):
        return ()
    return tuple(sorted(set(wanted) - {seat.rank for seat in group.seats.values()}))


def world_size(machine: Machine, group: Group) -> int | None:
    told = [seat.world_size for seat in group.seats.values() if seat.world_size is not None]
    if told:
        return max(told)
    counts = [launchers.count(machine.command(top)) for top in group.tops]
    return counts[0] if len(counts) == 1 else None


def _launchers(machine: Machine, group: Group) -> list[int]:
    """The processes of the job that start ranks."""
    return [
        pid
        for pid, rank in group.members.items()
        if rank is None and launchers.launcher(machine.command(pid)) is not None
    ]


def _child_of(machine: Machine, parent: int, pid: int) -> int | None:
    """The child of `parent` through which `pid` descends from it, with no other launcher between;
    None: it does not."""
    for above in machine.above(pid):
        if above == parent:
            return pid
        if launchers.launcher(machine.command(above)) is not None:
            return None
        pid = above
    return None


def _offset(places: list[Place]) -> int | None:
    """Rank of the first one; None where those that are known are in another order."""
    offsets = set()
    for index, seat in enumerate(places):
        if seat.rank is not None:
            if seat.local_rank not in (None, index):
                return None
            offsets.add(seat.rank - index)
    if len(offsets) > 1:
        return None
    return offsets.pop() if offsets else 0
