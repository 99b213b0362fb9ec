"""From any process to its job, and all jobs of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from mgpu_probes.outside.jobs import evidence, launchers, numbers, slurm, spawned, told, unnamed
from mgpu_probes.outside.jobs.build import build
from mgpu_probes.outside.jobs.found import FoundJob
from mgpu_probes.outside.jobs.groups import Group, groups, may_start_ranks
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.members import share_out
from mgpu_probes.outside.jobs.place import Place

PROC = Path("/proc")


def find(pid: int, proc: Path = PROC) -> FoundJob | None:
    """The job that a process belongs to, or else the one with the most ranks below it; None: there
    is no such process, or it has nothing to do with a training."""
    found = find_below(pid, proc)
    return max(found, key=lambda job: len(job.ranks), default=None)


def find_below(pid: int, proc: Path = PROC) -> tuple[FoundJob, ...]:
    """The job that a process belongs to; if it belongs to none, all jobs below it."""
    machine = Machine(proc)
    pid = machine.process_of(pid)
    if pid not in machine.entries:
        return ()
    jobs = _jobs(machine, _seats(machine, lenient=True))
    for job in jobs:
        if any(process.pid == pid for process in job.processes):
            return (job,)
    within = {pid, *machine.below(pid)}
    within.update(slurm.steps_of(machine, within))
    below = tuple(job for job in jobs if any(one.pid in within for one in job.processes))
    return below or _pointed_at(machine, pid)


def find_all(proc: Path = PROC) -> tuple[FoundJob, ...]:
    """Every training job of this machine, in the order of their start; none when in doubt."""
    machine = Machine(proc)
    found = _jobs(machine, _seats(machine, lenient=False))
    jobs = [job for job in found if _trains(machine, job)]
    return tuple(sorted(jobs, key=lambda job: min(one.start_ticks for one in job.processes)))


def unseen(pid: int, proc: Path = PROC) -> str:
    """Why `find` has no job for this pid, as one sentence without its stop."""
    if pid <= 0:
        return f"{pid} is no process id"
    if (proc / str(pid)).exists():
        return f"process {pid} is no part of a training job"
    try:
        os.kill(pid, 0)  # 0 sends nothing: kill(2)
    except ProcessLookupError:
        return f"there is no process {pid} on this host"
    except OverflowError:
        return f"{pid} is no process id"
    except PermissionError:
        pass
    return (
        f"process {pid} is hidden from this user (/proc is mounted with hidepid): run as its owner"
    )


def _seats(machine: Machine, *, lenient: bool) -> tuple[dict[int, Place], dict[int, int]]:
    """All ranks; of those that multiprocessing started, which process did."""
    seats = told.told(machine)
    seats.update(unnamed.of_ray(machine, seats))
    starters: dict[int, int] = {}
    for parent in list(machine.entries):
        if parent not in machine.children or not may_start_ranks(machine, parent):
            continue
        ranks = spawned.children(machine, parent, lenient=lenient and parent not in seats)
        if ranks and not any(pid in seats for pid in ranks):
            seats.pop(parent, None)
            seats.update(spawned.by_order(machine, parent, ranks))
            starters.update(dict.fromkeys(ranks, parent))
    seats.update(unnamed.unreadable(machine, seats))
    for parent in list(machine.children):
        if launchers.launcher(machine.command(parent)) is not None:
            seats.update(unnamed.dead(machine, parent, seats))
    alone = [pid for pid in _programs(machine, seats) if evidence.trains(machine, pid)]
    seats.update(dict.fromkeys(alone, unnamed.ALONE))
    return seats, starters


def _jobs(machine: Machine, ranks: tuple[dict[int, Place], dict[int, int]]) -> list[FoundJob]:
    found = groups(machine, *ranks)
    share_out(machine, found)
    taken = {pid for group in found for pid in group.members}
    for pid in _still_without_ranks(machine, taken):
        found.append(Group(_its_program(machine, pid), [pid]))
    for group in found:
        numbers.number_by_order(machine, group)
    share_out(machine, found)
    return [build(machine, group) for group in found]


def _still_without_ranks(machine: Machine, taken: set[int]) -> list[int]:
    """Launchers that have started nothing: they wait for other hosts, or their ranks are gone."""
    found: list[int] = []
    for pid in machine.entries:
        name = launchers.launcher(machine.command(pid))
        if name is not None and name not in launchers.HOSTS and pid not in taken:
            found.append(pid)
    return [pid for pid in found if not set(machine.above(pid)).intersection(found)]


def _its_program(machine: Machine, launcher: int) -> dict[int, Place]:
    """`accelerate launch` tells a single process nothing: it trains alone."""
    if launchers.launcher(machine.command(launcher)) != "accelerate":
        return {}
    programs = [pid for pid in machine.children.get(launcher, ()) if may_start_ranks(machine, pid)]
    return {programs[0]: unnamed.ALONE} if len(programs) == 1 else {}


def _trains(machine: Machine, job: FoundJob) -> bool:
    """MPI and Slurm start any kind of program."""
    if job.launcher not in launchers.ANY_PROGRAM:
        return True
    return any(
        evidence.python(machine, one.pid) or evidence.framework(machine, one.pid)
        for one in job.ranks
    )


def _programs(machine: Machine, seats: dict[int, Place]) -> list[int]:
    """Python programs that belong to no rank or launcher, the topmost of each tree that has
    loaded a framework."""
    found = [
        pid
        for pid in machine.entries
        if may_start_ranks(machine, pid)
        and not any(
            above in seats or launchers.launcher(machine.command(above))
            for above in (pid, *machine.above(pid))
        )
        and not any(below in seats for below in machine.below(pid))
        and evidence.framework(machine, pid)
    ]
    return [pid for pid in found if not set(machine.above(pid)).intersection(found)]


def _pointed_at(machine: Machine, pid: int) -> tuple[FoundJob, ...]:
    """What somebody names is taken for a training if it is a Python program at all."""
    for above in machine.above(pid):
        same = machine.command(above) == machine.command(pid)
        started = same or launchers.spawned(machine.command(pid))
        if evidence.python(machine, above) and started:
            pid = above
    candidates = [one for one in (pid, *machine.below(pid)) if may_start_ranks(machine, one)]
    loaded = [one for one in candidates if evidence.framework(machine, one)]
    if pid in candidates:
        loaded.append(pid)
    if not loaded:
        return ()
    group = Group({loaded[0]: unnamed.ALONE}, [loaded[0]])
    share_out(machine, [group])
    return (build(machine, group),)
