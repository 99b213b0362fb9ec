"""Which ranks form one job, which processes belong to it, and which ranks are missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mgpu_probes.outside.jobs.command_lines import is_doctor, is_helper
from mgpu_probes.outside.jobs.launched_ranks import UNREADABLE, find_dead_ranks
from mgpu_probes.outside.jobs.launchers import (
    HOSTS_SEVERAL_JOBS,
    count_ranks,
    launches_one_job,
    name_launcher,
)
from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place
from mgpu_probes.outside.jobs.ray_workers import RAY
from mgpu_probes.outside.jobs.training_evidence import is_notebook, is_server, runs_python

MOST_MISSING = 4096


@dataclass(slots=True)
class Group:
    """The ranks of one job and the processes that started them, whose descendants belong to the
    job too."""

    places: dict[int, Place]
    tops: list[int] = field(default_factory=list)
    starters: set[int] = field(default_factory=set)
    """Pids that started ranks and are no known launcher."""
    members: dict[int, int | None] = field(default_factory=dict)
    """Pid of each process of the job -> pid of the rank that it is or descends from; None for
    launchers and their other children."""

    def is_disjoint(self, other: Group) -> bool:
        mine = {place.rank for place in self.places.values()} - {None}
        return not mine.intersection(place.rank for place in other.places.values())


def group_ranks(
    machine: Machine, places: Mapping[int, Place], starters: Mapping[int, int]
) -> list[Group]:
    """The ranks, one group per job. `starters`: pid of a rank -> its parent, if that is no known
    launcher."""
    by_top: dict[object, Group] = {}
    for pid, place in places.items():
        start = starters.get(pid, pid)
        top = _find_outermost_launcher(machine, places, start)
        if top is None:
            top = start
        # One raylet starts the workers of all jobs of its cluster.
        key = (top, place.rendezvous) if place.source == RAY else top
        group = by_top.setdefault(key, Group({}, [top]))
        group.places[pid] = place
        group.starters.update({start} - {pid})
    met: dict[tuple[str | None, ...], list[Group]] = {}
    for group in by_top.values():
        same = met.setdefault(_rendezvous(machine, group), [])
        for other in same:
            if _are_one_job(machine, group, other):
                other.places.update(group.places)
                other.tops.extend(group.tops)
                other.starters.update(group.starters)
                break
        else:
            same.append(group)
    groups = [group for same in met.values() for group in same]
    ranks = {pid for group in groups for pid in group.places}
    tops = {pid for group in groups for pid in group.tops}
    for group in groups:
        _adopt_parent(machine, group, ranks, tops)
    return groups


def _adopt_parent(machine: Machine, group: Group, ranks: set[int], tops: set[int]) -> None:
    """Makes a program that started all ranks of this job, and nothing of another, its launcher. Its
    zombie children are ranks too."""
    parents = {machine.entries[pid].parent for pid in group.places}
    parent = parents.pop()
    if parents or group.tops != list(group.places) or parent in ranks | tops:
        return
    below = set(machine.descendants(parent))
    if any(launches_one_job(machine.command(pid)) for pid in below):
        return
    if may_start_ranks(machine, parent) and ranks & below == set(group.places):
        group.tops, group.starters = [parent], {parent}
        tops.add(parent)
        group.places.update(find_dead_ranks(machine, parent, group.places))


def _find_outermost_launcher(machine: Machine, places: Mapping[int, Place], pid: int) -> int | None:
    """The outermost launcher above a process. The search ends at a rank that starts its own job."""
    outermost_launcher = pid if _name(machine, pid) is not None else None
    for above in machine.ancestors(pid):
        if above in places:
            break
        name = _name(machine, above)
        if name is not None:
            if name in HOSTS_SEVERAL_JOBS and outermost_launcher is not None:
                break
            outermost_launcher = above
    return outermost_launcher


def may_start_ranks(machine: Machine, pid: int) -> bool:
    """Whether it is a user's program that may start ranks, or be one."""
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


def _rendezvous(machine: Machine, group: Group) -> tuple[str | None, ...]:
    """A key that is equal for groups with one rendezvous, and unique if that is unknown."""
    for pid, place in group.places.items():
        if place.rendezvous:
            # Each network namespace has its own loopback.
            network = machine.namespace(pid, "net") if place.one_host else None
            return (network, *place.rendezvous)
    return _find_common_parent(machine, group) or ("alone", str(group.tops[0]))


def _find_common_parent(machine: Machine, group: Group) -> tuple[str, ...]:
    """A key for single ranks that one program started: they are one job even if they rendezvous
    outside of the environment, such as at a file. Empty otherwise."""
    if len(group.places) != 1 or group.tops != list(group.places):
        return ()
    ((pid, place),) = group.places.items()
    parent = machine.entries[pid].parent
    has_place = place.rank is not None and (place.world_size or 0) > 1
    if not has_place or not may_start_ranks(machine, parent):
        return ()
    return ("started", str(parent), place.source, str(place.world_size))


def _are_one_job(machine: Machine, group: Group, other: Group) -> bool:
    """Whether two groups with one rendezvous are one job. Two launchers that both started rank 0
    are two jobs: one is left over or will fail to bind the port. Two ranks of one number that were
    started by hand are a mistake within one job."""
    met = any(place.rendezvous for place in group.places.values())
    by_hand = met and not any(_name(machine, top) for top in group.tops + other.tops)
    return by_hand or group.is_disjoint(other)


def assign_members(machine: Machine, groups: Iterable[Group]) -> None:
    """Assigns each process to at most one job: launchers and their other children first, then
    each rank and its descendants."""
    listed = list(groups)
    anchors = {pid for group in listed for pid in (*group.tops, *group.places)}
    for group in listed:
        group.members = {}
        for top in group.tops:
            if top not in group.places:
                tree = _list_tree(machine, top, anchors)
                group.members.update(dict.fromkeys(tree))
        for rank in sort_ranks(group):
            group.members.update(dict.fromkeys(_list_tree(machine, rank, anchors), rank))


def sort_ranks(group: Group) -> list[int]:
    """The pids of its ranks, sorted by rank; unknown ranks last."""
    places = group.places
    return sorted(places, key=lambda pid: (places[pid].rank is None, places[pid].rank or 0, pid))


def _list_tree(machine: Machine, anchor: int, anchors: set[int]) -> list[int]:
    """A process and its descendants down to the next rank or launcher of a job."""
    tree = [anchor]
    for pid in tree:
        tree.extend(child for child in machine.children.get(pid, ()) if child not in anchors)
    return [pid for pid in tree if pid == anchor or not is_doctor(machine.command(pid))]


def number_by_order(machine: Machine, group: Group) -> None:
    """Numbers unknown ranks in the order of their start, if all ranks of their launcher on this
    host exist and the known ranks agree with that order."""
    for parent in (*_list_launchers(machine, group), *group.starters):
        below = {pid: _find_child(machine, parent, pid) for pid in group.places}
        started = sorted(
            (pid for pid, child in below.items() if child is not None),
            key=lambda pid: machine.entries[below[pid] or pid].started,
        )
        places = [group.places[pid] for pid in started]
        known = [place for place in places if place.rank is not None]
        offset = _find_offset(places)
        if len(known) == len(places) or offset is None:
            continue
        size = _count_local_ranks(group, known) if known else count_ranks(machine.command(parent))
        world = known[0].world_size if known else size
        for index, pid in enumerate(started) if size == len(started) else ():
            if group.places[pid].rank is None:
                group.places[pid] = replace(
                    UNREADABLE, rank=offset + index, local_rank=index, world_size=world
                )


def _count_local_ranks(group: Group, known: list[Place]) -> int | None:
    """How many ranks their launcher starts on this host; None if unknown."""
    if known[0].local_world_size is not None:
        return known[0].local_world_size
    wanted = list_expected_ranks(group)
    return None if wanted is None else len(wanted)


def list_expected_ranks(group: Group) -> tuple[int, ...] | None:
    """The ranks that this host should have; None if unknown."""
    places = list(group.places.values())
    stated = [place for place in places if place.rank is not None and place.world_size is not None]
    for place in stated:
        if place.one_host:
            return tuple(range(min(place.world_size or 0, MOST_MISSING)))
    numbers: set[int] = set()
    for place in stated:
        if place.local_world_size is None or place.local_rank is None or place.rank is None:
            return None
        first = place.rank - place.local_rank
        numbers.update(range(first, first + min(place.local_world_size, MOST_MISSING)))
    return tuple(sorted(numbers)) or None


def find_missing_ranks(group: Group, wanted: Iterable[int]) -> tuple[int, ...]:
    """The expected ranks without a process; empty if ranks of unknown number could be these."""
    if any(place.rank is None and not place.is_auxiliary for place in group.places.values()):
        return ()
    return tuple(sorted(set(wanted) - {place.rank for place in group.places.values()}))


def find_world_size(machine: Machine, group: Group) -> int | None:
    """The number of ranks by the environment, else by the launcher's options; None if unknown."""
    sizes = [place.world_size for place in group.places.values() if place.world_size is not None]
    if sizes:
        return max(sizes)
    counts = [count_ranks(machine.command(top)) for top in group.tops]
    return counts[0] if len(counts) == 1 else None


def _list_launchers(machine: Machine, group: Group) -> list[int]:
    """The processes of the job that start ranks."""
    return [
        pid
        for pid, rank in group.members.items()
        if rank is None and name_launcher(machine.command(pid)) is not None
    ]


def _find_child(machine: Machine, parent: int, pid: int) -> int | None:
    """The child of `parent` from which `pid` descends without another launcher between; None if it
    does not."""
    for above in machine.ancestors(pid):
        if above == parent:
            return pid
        if name_launcher(machine.command(above)) is not None:
            return None
        pid = above
    return None


def _find_offset(places: list[Place]) -> int | None:
    """The rank of the first place; None if the known ranks are in another order."""
    offsets = set()
    for index, place in enumerate(places):
        if place.rank is not None:
            if place.local_rank not in (None, index):
                return None
            offsets.add(place.rank - index)
    if len(offsets) > 1:
        return None
    return offsets.pop() if offsets else 0
