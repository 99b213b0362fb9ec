"""Which ranks form one job, which processes belong to it, and which ranks are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mgpu_probes.outside.jobs.command_lines import is_doctor, is_helper
from mgpu_probes.outside.jobs.launched_ranks import UNREADABLE, find_dead_ranks
from mgpu_probes.outside.jobs.launchers import HOSTS_SEVERAL_JOBS, count_ranks, name_launcher
from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place
from mgpu_probes.outside.jobs.training_evidence import is_notebook, is_server, runs_python

MOST_MISSING = 4096


@dataclass(slots=True)
class Group:
    """The ranks of one job, and the processes that started them: what is below these belongs to
    the job too."""

    seats: dict[int, Place]
    tops: list[int] = field(default_factory=list)
    starters: set[int] = field(default_factory=set)
    """Those that started ranks and are no launchers by their names."""
    members: dict[int, int | None] = field(default_factory=dict)
    """All processes of the job, each with the rank that it is or that started it; None: what the
    launchers started beside the ranks, and they themselves."""

    def disjoint(self, other: Group) -> bool:
        mine = {seat.rank for seat in self.seats.values()} - {None}
        return not mine.intersection(seat.rank for seat in other.seats.values())


def group_ranks(
    machine: Machine, seats: Mapping[int, Place], starters: Mapping[int, int]
) -> list[Group]:
    """`starters`: rank -> the process that started it, where that is no launcher by its name."""
    by_top: dict[int, Group] = {}
    for pid, seat in seats.items():
        start = starters.get(pid, pid)
        top = _top(machine, seats, start)
        if top is None:
            top = start
        group = by_top.setdefault(top, Group({}, [top]))
        group.seats[pid] = seat
        group.starters.update({start} - {pid})
    met: dict[tuple[str | None, ...], list[Group]] = {}
    for group in by_top.values():
        same = met.setdefault(_meeting(machine, group), [])
        for other in same:
            if _together(machine, group, other):
                other.seats.update(group.seats)
                other.tops.extend(group.tops)
                other.starters.update(group.starters)
                break
        else:
            same.append(group)
    found = [group for same in met.values() for group in same]
    ranks = {pid for group in found for pid in group.seats}
    tops = {pid for group in found for pid in group.tops}
    for group in found:
        _adopt(machine, group, ranks, tops)
    return found


def _adopt(machine: Machine, group: Group, ranks: set[int], tops: set[int]) -> None:
    """A program that started all ranks of this job, and none of another, is its launcher, homemade
    or not; what it left of its dead children are ranks too."""
    parents = {machine.entries[pid].parent for pid in group.seats}
    parent = parents.pop()
    if parents or group.tops != list(group.seats) or parent in ranks | tops:
        return
    below = set(machine.below(parent))
    if may_start_ranks(machine, parent) and ranks & below == set(group.seats):
        group.tops, group.starters = [parent], {parent}
        tops.add(parent)
        group.seats.update(find_dead_ranks(machine, parent, group.seats))


def _top(machine: Machine, seats: Mapping[int, Place], pid: int) -> int | None:
    """The outermost launcher above it. A rank that starts a job of its own ends the way up."""
    found = pid if _name(machine, pid) is not None else None
    for above in machine.above(pid):
        if above in seats:
            break
        name = _name(machine, above)
        if name is not None:
            if name in HOSTS_SEVERAL_JOBS and found is not None:
                break
            found = above
    return found


def may_start_ranks(machine: Machine, pid: int) -> bool:
    """Whether it is a program of the user that may start ranks of its own, or be one."""
    command = machine.command(pid)
    return (
        runs_python(machine, pid)
        and pid != os.getpid()
        and not is_doctor(command)
        and not is_helper(command)
        and name_launcher(command) is None
        and (not is_server(machine, pid) or is_notebook(machine, pid))
    )


def _name(machine: Machine, pid: int) -> str | None:
    return name_launcher(machine.command(pid))


def _meeting(machine: Machine, group: Group) -> tuple[str | None, ...]:
    """Equal for groups that meet; of its own where nothing tells."""
    for pid, seat in group.seats.items():
        if seat.meeting:
            # One address on the loop-back is another place in every network namespace.
            network = machine.namespace(pid, "net") if seat.one_host else None
            return (network, *seat.meeting)
    return _started_by(machine, group) or ("alone", str(group.tops[0]))


def _started_by(machine: Machine, group: Group) -> tuple[str, ...]:
    """Ranks that meet where the environment does not tell, at a file for one, are of one job if one
    program started them; empty where that is not so."""
    if len(group.seats) != 1 or group.tops != list(group.seats):
        return ()
    ((pid, seat),) = group.seats.items()
    parent = machine.entries[pid].parent
    told = seat.rank is not None and (seat.world_size or 0) > 1
    if not told or not may_start_ranks(machine, parent):
        return ()
    return ("started", str(parent), seat.told_by, str(seat.world_size))


def _together(machine: Machine, group: Group, other: Group) -> bool:
    """Two launchers that have both started rank 0 at one port are two jobs, of which one is left
    over or will not get the port. Two ranks of one number that were started by hand are a mistake
    within one job, where it is told that they meet."""
    met = any(seat.meeting for seat in group.seats.values())
    by_hand = met and not any(_name(machine, top) for top in group.tops + other.tops)
    return by_hand or group.disjoint(other)


def assign_members(machine: Machine, groups: Iterable[Group]) -> None:
    """Gives every process to at most one job: launchers and what they started beside ranks come
    first, then each rank and what it started."""
    listed = list(groups)
    anchors = {pid for group in listed for pid in (*group.tops, *group.seats)}
    for group in listed:
        group.members = {}
        for top in group.tops:
            if top not in group.seats:
                tree = _tree(machine, top, anchors)
                group.members.update(dict.fromkeys(tree))
        for rank in sort_ranks(group):
            group.members.update(dict.fromkeys(_tree(machine, rank, anchors), rank))


def sort_ranks(group: Group) -> list[int]:
    """The pids of its ranks in the order of their numbers, the unnamed last."""
    seats = group.seats
    return sorted(seats, key=lambda pid: (seats[pid].rank is None, seats[pid].rank or 0, pid))


def _tree(machine: Machine, anchor: int, anchors: set[int]) -> list[int]:
    """The process and what is below it, as far as to the next rank or launcher of a job."""
    found = [anchor]
    for pid in found:
        found.extend(child for child in machine.children.get(pid, ()) if child not in anchors)
    return [pid for pid in found if pid == anchor or not is_doctor(machine.command(pid))]


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
        size = _started_here(group, known) if known else count_ranks(machine.command(parent))
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
    wanted = expected_ranks(group)
    return None if wanted is None else len(wanted)


def expected_ranks(group: Group) -> tuple[int, ...] | None:
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


def find_missing_ranks(group: Group, wanted: Iterable[int]) -> tuple[int, ...]:
    """Empty where ranks that nothing names could be those that are not there."""
    if any(seat.rank is None and not seat.beside for seat in group.seats.values()):
        return ()
    return tuple(sorted(set(wanted) - {seat.rank for seat in group.seats.values()}))


def find_world_size(machine: Machine, group: Group) -> int | None:
    told = [seat.world_size for seat in group.seats.values() if seat.world_size is not None]
    if told:
        return max(told)
    counts = [count_ranks(machine.command(top)) for top in group.tops]
    return counts[0] if len(counts) == 1 else None


def _launchers(machine: Machine, group: Group) -> list[int]:
    """The processes of the job that start ranks."""
    return [
        pid
        for pid, rank in group.members.items()
        if rank is None and name_launcher(machine.command(pid)) is not None
    ]


def _child_of(machine: Machine, parent: int, pid: int) -> int | None:
    """The child of `parent` through which `pid` descends from it, with no other launcher between;
    None: it does not."""
    for above in machine.above(pid):
        if above == parent:
            return pid
        if name_launcher(machine.command(above)) is not None:
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
