"""Which ranks are one job: those below one launcher, and those that meet at one place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from mgpu_probes.outside.jobs import evidence, launchers
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.place import Place
from mgpu_probes.outside.jobs.unnamed import dead


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


def groups(
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
        group.seats.update(dead(machine, parent, group.seats))


def _top(machine: Machine, seats: Mapping[int, Place], pid: int) -> int | None:
    """The outermost launcher above it. A rank that starts a job of its own ends the way up."""
    found = pid if _name(machine, pid) is not None else None
    for above in machine.above(pid):
        if above in seats:
            break
        name = _name(machine, above)
        if name is not None:
            if name in launchers.HOSTS and found is not None:
                break
            found = above
    return found


def may_start_ranks(machine: Machine, pid: int) -> bool:
    """Whether it is a program of the user that may start ranks of its own, or be one."""
    command = machine.command(pid)
    return (
        evidence.python(machine, pid)
        and pid != os.getpid()
        and not launchers.doctor(command)
        and not launchers.helper(command)
        and launchers.launcher(command) is None
        and (not evidence.server(machine, pid) or evidence.notebook(machine, pid))
    )


def _name(machine: Machine, pid: int) -> str | None:
    return launchers.launcher(machine.command(pid))


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


def _together(machine: Machine, one: Group, other: Group) -> bool:
    """Two launchers that have both started rank 0 at one port are two jobs, of which one is left
    over or will not get the port. Two ranks of one number that were started by hand are a mistake
    within one job, where it is told that they meet."""
    met = any(seat.meeting for seat in one.seats.values())
    by_hand = met and not any(_name(machine, top) for top in one.tops + other.tops)
    return by_hand or one.disjoint(other)
