"""Which processes are ranks, by what their launcher told them in the environment.

Children inherit the environment: of all processes of one place, one is the rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mgpu_probes.outside.jobs import evidence, launchers
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.place import Place, place


def told(machine: Machine) -> dict[int, Place]:
    """The place of each rank that was told one."""
    places = _Places(machine)
    cells: dict[int, list[int]] = {}
    for pid in machine.entries:
        may_be_one = evidence.python(machine, pid) or launched(machine, pid)
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
        elif launched(machine, root) and len(machine.command(root)) > 1:
            unfilled[root] = seat
    for root, seat in unfilled.items():  # a shell that has not come to its training yet
        below = machine.below(root)
        if not any(pid in ranks or _launches(machine, pid) for pid in (root, *below)):
            ranks[root] = seat
    ranks.update(_lightning_mains(machine, places, ranks))
    return {pid: seat for pid, seat in ranks.items() if not _only_starts(machine, pid, ranks)}


def launched(machine: Machine, pid: int) -> bool:
    """Whether a launcher started it, itself or through a shell that was given a command."""
    for above in machine.above(pid):
        command = machine.command(above)
        if _launches(machine, above):
            return True
        if not launchers.wrapper(command) or len(command) < 2:
            return False
    return False


def _launches(machine: Machine, pid: int) -> bool:
    return launchers.launcher(machine.command(pid)) is not None


class _Places(dict[int, Place | None]):
    """What the environment of a process tells, read when it is asked for: that takes longer than
    all else that is read of it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __missing__(self, pid: int) -> Place | None:
        environment = self._machine.environment(pid)
        self[pid] = place(environment) if environment else None
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
        if evidence.framework(machine, pid):
            return pid
    if seat.told_by == "slurm":
        # Slurm tells it to whatever is run in an interactive shell too.
        candidates = [pid for pid in candidates if launched(machine, pid)]
    for pid in candidates:
        if evidence.python(machine, pid):
            return pid
    return candidates[0] if candidates and launched(machine, root) else None


def _may_be_a_rank(machine: Machine, pid: int) -> bool:
    command = machine.command(pid)
    return not (
        not command
        or pid == os.getpid()
        or machine.entries[pid].zombie
        or machine.entries[pid].name == evidence.LOADER_THREAD
        or launchers.wrapper(command)
        or launchers.helper(command)
        or _launches(machine, pid)
        or (evidence.server(machine, pid) and not launched(machine, pid))
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
        if places[parent] is None and evidence.python(machine, parent):
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
    if evidence.in_a_group(machine, pid) or evidence.device(machine, pid):
        return False
    return seat.told_by == "slurm" or not evidence.framework(machine, pid)
