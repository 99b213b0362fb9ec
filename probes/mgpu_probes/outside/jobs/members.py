"""Which processes belong to a job: each to the nearest rank or launcher above it."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_probes.outside.jobs import launchers
from mgpu_probes.outside.jobs.groups import Group
from mgpu_probes.outside.jobs.machine import Machine


def share_out(machine: Machine, groups: Iterable[Group]) -> None:
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
        for rank in in_order(group):
            group.members.update(dict.fromkeys(_tree(machine, rank, anchors), rank))


def in_order(group: Group) -> list[int]:
    """The pids of its ranks in the order of their numbers, the unnamed last."""
    seats = group.seats
    return sorted(seats, key=lambda pid: (seats[pid].rank is None, seats[pid].rank or 0, pid))


def _tree(machine: Machine, anchor: int, anchors: set[int]) -> list[int]:
    """The process and what is below it, as far as to the next rank or launcher of a job."""
    found = [anchor]
    for pid in found:
        found.extend(child for child in machine.children.get(pid, ()) if child not in anchors)
    return [pid for pid in found if pid == anchor or not launchers.doctor(machine.command(pid))]
