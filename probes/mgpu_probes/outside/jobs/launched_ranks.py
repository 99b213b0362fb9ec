"""Finds the processes that are ranks, by the environment that their launcher set or otherwise.

Children inherit the environment: of all processes with the same place, one is the rank. Ranks of
other users, and zombies, have no known number."""

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
    is_in_process_group,
    is_server,
    runs_python,
)

ALONE = Place("alone", 0, 0, 1, 1, (), one_host=True)
"""The only rank of a program that trains alone, on any number of devices."""
UNREADABLE = Place("nothing", None, None, None, None, (), one_host=False)


def find_launched_ranks(machine: Machine) -> dict[int, Place]:
    """Pid -> place of the ranks whose environment names it."""
    places = _Places(machine)
    cells: dict[int, list[int]] = {}
    for pid in machine.entries:
        may_be_one = runs_python(machine, pid) or is_launched(machine, pid)
        if may_be_one and places[pid] is not None:
            cells.setdefault(_find_root(machine, places, pid), []).append(pid)
    ranks: dict[int, Place] = {}
    unfilled: dict[int, Place] = {}
    for root, members in cells.items():
        place = places[root]
        assert place is not None
        chosen = _choose_rank(machine, root, place, _sort_downwards(machine, root, members))
        if chosen is not None:
            ranks[chosen] = place
        elif is_launched(machine, root) and len(machine.command(root)) > 1:
            unfilled[root] = place
    for root, place in unfilled.items():  # a shell that has not started its training yet
        below = machine.descendants(root)
        if not any(pid in ranks or _is_launcher(machine, pid) for pid in (root, *below)):
            ranks[root] = place
    ranks.update(_find_lightning_mains(machine, places, ranks))
    return {
        pid: place for pid, place in ranks.items() if not _only_starts_ranks(machine, pid, ranks)
    }


def is_launched(machine: Machine, pid: int) -> bool:
    """Whether a launcher started it, directly or through wrappers."""
    for above in machine.ancestors(pid):
        command = machine.command(above)
        if _is_launcher(machine, above):
            return True
        if not is_wrapper(command) or len(command) < 2:
            return False
    return False


def _is_launcher(machine: Machine, pid: int) -> bool:
    return name_launcher(machine.command(pid)) is not None


class _Places(dict[int, Place | None]):
    """Pid -> place by its environment, read on demand: the environment is the slowest file of a
    process to read."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __missing__(self, pid: int) -> Place | None:
        environment = self._machine.environment(pid)
        self[pid] = parse_place(environment) if environment else None
        return self[pid]


def _find_root(machine: Machine, places: _Places, pid: int) -> int:
    """The topmost process from which this one inherited its place."""
    for above in machine.ancestors(pid):
        if places[above] != places[pid]:
            break
        pid = above
    return pid


def _sort_downwards(machine: Machine, root: int, members: Iterable[int]) -> list[int]:
    within = set(members)
    return [pid for pid in (root, *machine.descendants(root)) if pid in within]


def _choose_rank(machine: Machine, root: int, place: Place, members: Iterable[int]) -> int | None:
    """The process that is the rank: the first with a framework loaded, else the first Python."""
    candidates = [pid for pid in members if _may_be_a_rank(machine, pid)]
    for pid in candidates:
        if has_framework(machine, pid):
            return pid
    if place.source == "slurm":
        # Slurm sets it for every command of an interactive shell too.
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
        or _is_launcher(machine, pid)
        or (is_server(machine, pid) and not is_launched(machine, pid))
    )


def _find_lightning_mains(
    machine: Machine, places: _Places, ranks: Mapping[int, Place]
) -> dict[int, Place]:
    """Pid -> place of Lightning's rank 0, which starts the others and has no variables."""
    lightning_mains = {}
    for pid, place in ranks.items():
        parent = machine.entries[pid].parent
        if (
            place.source != "lightning"
            or parent not in machine.entries
            or parent in lightning_mains
        ):
            continue
        if places[parent] is None and runs_python(machine, parent):
            first = None if place.rank is None else 0
            lightning_mains[parent] = replace(place, rank=first, local_rank=0)
    return lightning_mains


def _only_starts_ranks(machine: Machine, pid: int, ranks: Mapping[int, Place]) -> bool:
    """Whether it is a script that starts the ranks without being one: its own place comes from
    Slurm, for example, and theirs from the job."""
    place = ranks[pid]
    others = [
        below for below in machine.descendants(pid) if below in ranks and ranks[below] != place
    ]
    if not others or any(ranks[below].source == "lightning" for below in others):
        return False
    if is_in_process_group(machine, pid) or has_device_open(machine, pid):
        return False
    return place.source == "slurm" or not has_framework(machine, pid)


def find_unreadable_ranks(machine: Machine, ranks: Container[int]) -> dict[int, Place]:
    """Pid -> place of another user's ranks: below a launcher, with an unreadable environment."""
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


def find_dead_ranks(machine: Machine, parent: int, ranks: Container[int]) -> dict[int, Place]:
    """Pid -> place of the launcher's zombie ranks. Only pid, name and parent of a zombie are
    known."""
    below = machine.children.get(parent, ())
    zombies = [pid for pid in below if pid not in ranks and machine.entries[pid].zombie]
    names = {machine.entries[pid].name for pid in below if pid in ranks} if zombies else set()
    return {
        pid: UNREADABLE
        for pid in zombies
        if (name := machine.entries[pid].name) in names or is_python_command((name,))
    }
