"""Which processes are ranks: by the environment that their launcher set, or by other signs.

Children inherit the environment: of all processes with one place in the job, one is the rank.
Ranks without a known number are those of other users, of Ray, zombies, and programs that train
alone."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from mgpu_probes.outside.jobs.command_lines import is_helper, is_python_command, is_wrapper
from mgpu_probes.outside.jobs.launchers import name_launcher
from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place, parse_place
from mgpu_probes.outside.jobs.training_evidence import (
    LOADER_THREAD,
    has_device_open,
    has_framework,
    hosts_store,
    is_in_process_group,
    is_server,
    runs_python,
)

ALONE = Place("alone", 0, 0, 1, 1, (), one_host=True)
"""The one rank of a program that trains by itself, on however many devices."""
UNREADABLE = Place("nothing", None, None, None, None, (), one_host=False)
RAY = "ray"
_OF_RAY = "ray::RayTrainWorker"
"""How Ray Train's workers call themselves (Ray 2.60)."""


def find_launched_ranks(machine: Machine) -> dict[int, Place]:
    """The place of each rank that was told one."""
    places = _Places(machine)
    cells: dict[int, list[int]] = {}
    for pid in machine.entries:
        may_be_one = runs_python(machine, pid) or is_launched(machine, pid)
        if may_be_one and places[pid] is not None:
            cells.setdefault(_root(machine, places, pid), []).append(pid)
    ranks: dict[int, Place] = {}
    unfilled: dict[int, Place] = {}
    for root, members in cells.items():
        seat = places[root]
        assert seat is not None
        chosen = _chosen(machine, root, seat, _downwards(machine, root, members))
        if chosen is not None:
            ranks[chosen] = seat
        elif is_launched(machine, root) and len(machine.command(root)) > 1:
            unfilled[root] = seat
    for root, seat in unfilled.items():  # a shell that has not come to its training yet
        below = machine.below(root)
        if not any(pid in ranks or _launches(machine, pid) for pid in (root, *below)):
            ranks[root] = seat
    ranks.update(_lightning_mains(machine, places, ranks))
    return {pid: seat for pid, seat in ranks.items() if not _only_starts(machine, pid, ranks)}


def is_launched(machine: Machine, pid: int) -> bool:
    """Whether a launcher started it, itself or through a shell that was given a command."""
    for above in machine.above(pid):
        command = machine.command(above)
        if _launches(machine, above):
            return True
        if not is_wrapper(command) or len(command) < 2:
            return False
    return False


def _launches(machine: Machine, pid: int) -> bool:
    return name_launcher(machine.command(pid)) is not None


class _Places(dict[int, Place | None]):
    """What the environment of a process tells, read when it is asked for: that takes longer than
    all else that is read of it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __missing__(self, pid: int) -> Place | None:
        environment = self._machine.environment(pid)
        self[pid] = parse_place(environment) if environment else None
        return self[pid]


def _root(machine: Machine, places: _Places, pid: int) -> int:
    """The topmost process from which it inherited its place."""
    for above in machine.above(pid):
        if places[above] != places[pid]:
            break
        pid = above
    return pid


def _downwards(machine: Machine, root: int, members: Iterable[int]) -> list[int]:
    within = set(members)
    return [pid for pid in (root, *machine.below(root)) if pid in within]


def _chosen(machine: Machine, root: int, seat: Place, members: Iterable[int]) -> int | None:
    """The one that is the rank: the first that has loaded a framework, else the first Python."""
    candidates = [pid for pid in members if _may_be_a_rank(machine, pid)]
    for pid in candidates:
        if has_framework(machine, pid):
            return pid
    if seat.told_by == "slurm":
        # Slurm tells it to whatever is run in an interactive shell too.
        candidates = [pid for pid in candidates if is_launched(machine, pid)]
    for pid in candidates:
        if runs_python(machine, pid):
            return pid
    return candidates[0] if candidates and is_launched(machine, root) else None


def _may_be_a_rank(machine: Machine, pid: int) -> bool:
    command = machine.command(pid)
    return not (
        not command
        or pid == os.getpid()
        or machine.entries[pid].zombie
        or machine.entries[pid].name == LOADER_THREAD
        or is_wrapper(command)
        or is_helper(command)
        or _launches(machine, pid)
        or (is_server(machine, pid) and not is_launched(machine, pid))
    )


def _lightning_mains(
    machine: Machine, places: _Places, ranks: Mapping[int, Place]
) -> dict[int, Place]:
    """Lightning's rank 0 starts the others and is told nothing itself."""
    found = {}
    for pid, seat in ranks.items():
        parent = machine.entries[pid].parent
        if seat.told_by != "lightning" or parent not in machine.entries or parent in found:
            continue
        if places[parent] is None and runs_python(machine, parent):
            first = None if seat.rank is None else 0
            found[parent] = replace(seat, rank=first, local_rank=0)
    return found


def _only_starts(machine: Machine, pid: int, ranks: Mapping[int, Place]) -> bool:
    """A script that starts the ranks of a job and takes no part: it was told its place in Slurm,
    say, and they were told theirs in the job."""
    seat = ranks[pid]
    others = [below for below in machine.below(pid) if below in ranks and ranks[below] != seat]
    if not others or any(ranks[below].told_by == "lightning" for below in others):
        return False
    if is_in_process_group(machine, pid) or has_device_open(machine, pid):
        return False
    return seat.told_by == "slurm" or not has_framework(machine, pid)


def find_unreadable_ranks(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """What a launcher started whose environment may not be read: another user's ranks."""
    return {
        pid: UNREADABLE
        for pid, entry in machine.entries.items()
        if pid not in ranks
        and not entry.zombie
        and (command := machine.command(pid))
        and not is_wrapper(command)
        and not is_helper(command)
        and name_launcher(command) is None
        and is_launched(machine, pid)
        and machine.environment(pid) is None
    }


def find_ray_ranks(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """Workers of Ray Train that have met: Ray tells them their numbers after their start, where
    only they see it. Where the others met is rank 0."""
    return {
        pid: Place(
            RAY,
            0 if hosts_store(machine, pid) else None,
            None,
            None,
            None,
            (),
            False,
        )
        for pid, entry in machine.entries.items()
        if pid not in ranks
        and not entry.zombie
        and any(word.startswith(_OF_RAY) for word in machine.command(pid)[:1])
        and is_in_process_group(machine, pid)
    }


def find_dead_ranks(machine: Machine, parent: int, ranks: Container[int]) -> dict[int, Place]:
    """Ranks of this launcher that ended and that it has not yet asked for. Nothing of them is left
    but their number, their name and their parent."""
    below = machine.children.get(parent, ())
    zombies = [pid for pid in below if pid not in ranks and machine.entries[pid].zombie]
    names = {machine.entries[pid].name for pid in below if pid in ranks} if zombies else set()
    return {
        pid: UNREADABLE
        for pid in zombies
        if (name := machine.entries[pid].name) in names or is_python_command((name,))
    }
