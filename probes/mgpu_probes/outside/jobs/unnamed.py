"""Ranks of which nothing tells the number: those of other users, of Ray, the dead, and programs
that train alone."""

from __future__ import annotations

from collections.abc import Container

from mgpu_probes.outside.jobs import evidence, launchers
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.place import Place
from mgpu_probes.outside.jobs.told import launched

ALONE = Place("alone", 0, 0, 1, 1, (), one_host=True)
"""The one rank of a program that trains by itself, on however many devices."""
UNREADABLE = Place("nothing", None, None, None, None, (), one_host=False)
RAY = "ray"
_OF_RAY = "ray::RayTrainWorker"
"""How Ray Train's workers call themselves (Ray 2.60)."""


def unreadable(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """What a launcher started whose environment may not be read: another user's ranks."""
    return {
        pid: UNREADABLE
        for pid, entry in machine.entries.items()
        if pid not in ranks
        and not entry.zombie
        and (command := machine.command(pid))
        and not launchers.wrapper(command)
        and not launchers.helper(command)
        and launchers.launcher(command) is None
        and launched(machine, pid)
        and machine.environment(pid) is None
    }


def of_ray(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """Workers of Ray Train that have met: Ray tells them their numbers after their start, where
    only they see it. Where the others met is rank 0."""
    return {
        pid: Place(RAY, 0 if evidence.hosts(machine, pid) else None, None, None, None, (), False)
        for pid, entry in machine.entries.items()
        if pid not in ranks
        and not entry.zombie
        and any(word.startswith(_OF_RAY) for word in machine.command(pid)[:1])
        and evidence.in_a_group(machine, pid)
    }


def dead(machine: Machine, parent: int, ranks: Container[int]) -> dict[int, Place]:
    """Ranks of this launcher that ended and that it has not yet asked for. Nothing of them is left
    but their number, their name and their parent."""
    below = machine.children.get(parent, ())
    zombies = [pid for pid in below if pid not in ranks and machine.entries[pid].zombie]
    names = {machine.entries[pid].name for pid in below if pid in ranks} if zombies else set()
    return {
        pid: UNREADABLE
        for pid in zombies
        if (name := machine.entries[pid].name) in names or launchers.python((name,))
    }
