"""Finds the job of a process, and all training jobs of this machine.

srun's tasks are children of slurmstepd, not of srun. The process title of slurmstepd,
`slurmstepd: [JOB.STEP]`, names their step; srun(1) documents the variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.command_lines import (
    is_fork_server,
    is_spawned,
    parse_program,
    program_name,
)
from mgpu_probes.outside.jobs.job_groups import (
    Group,
    assign_members,
    find_missing_ranks,
    find_world_size,
    group_ranks,
    list_expected_ranks,
    may_start_ranks,
    number_by_order,
)
from mgpu_probes.outside.jobs.launched_ranks import (
    ALONE,
    find_dead_ranks,
    find_launched_ranks,
    find_unreadable_ranks,
)
from mgpu_probes.outside.jobs.launchers import STARTS_ANY_PROGRAM, launches_one_job, name_launcher
from mgpu_probes.outside.jobs.process_table import Machine
from mgpu_probes.outside.jobs.rank_environment import Place
from mgpu_probes.outside.jobs.ray_workers import RAY, find_ray_job, find_ray_ranks
from mgpu_probes.outside.jobs.running_jobs import (
    LAUNCHER,
    LOADER,
    OTHER,
    RANK,
    JobProcess,
    RunningJob,
    UnreadSource,
)
from mgpu_probes.outside.jobs.spawned_ranks import ORDER, find_spawned_ranks, number_by_start
from mgpu_probes.outside.jobs.training_evidence import (
    LOADER_THREAD,
    has_device_open,
    has_framework,
    has_no_peer,
    is_training,
    runs_python,
)

PROC = Path("/proc")
_STEP = re.compile(r"^slurmstepd: \[(\d{1,10})\.(\d{1,10})[\].]")
MOST_WORDS = 64
LONGEST_WORD = 400
_REMEDY_TORCHRUN = "start the job with torchrun, or under `mgpu-doctor run`"
_NAMES_WITHOUT_LAUNCHER = {
    "TF_CONFIG": "TF_CONFIG",
    "lightning": "lightning",
    ORDER: "mp.spawn",
    "alone": "python",
}
"""Source of the ranks' places -> name of the job's launcher, if no launcher process exists."""
_PREFERRED = ("horovodrun", "deepspeed", "accelerate", "composer", "torchrun", "mpirun")
"""Which of several nested launchers names the job: the first of these."""


def find(pid: int, proc: Path = PROC) -> RunningJob | None:
    """The job of a process, else the job with the most ranks below it; None if there is no such
    process or no job."""
    jobs = find_below(pid, proc)
    return max(jobs, key=lambda job: len(job.ranks), default=None)


def find_below(pid: int, proc: Path = PROC) -> tuple[RunningJob, ...]:
    """The job of a process; if it belongs to none, all jobs below it, or that a driver of Ray runs
    on its cluster."""
    machine = Machine(proc)
    pid = machine.process_of(pid)
    if pid not in machine.entries:
        return ()
    places, starters = _find_places(machine, lenient=True)
    jobs = _build_jobs(machine, (places, starters))
    if ray_job := find_ray_job(machine, pid):
        own = {rank for rank, place in places.items() if place.rendezvous == ray_job}
        if of_driver := tuple(job for job in jobs if any(rank.pid in own for rank in job.ranks)):
            return of_driver
    for job in jobs:
        if any(process.pid == pid for process in job.processes):
            return (job,)
    within = {pid, *machine.descendants(pid)}
    within.update(find_step_daemons(machine, within))
    below = tuple(job for job in jobs if any(process.pid in within for process in job.processes))
    return below or _build_named_job(machine, pid)


def find_all(proc: Path = PROC) -> tuple[RunningJob, ...]:
    """All training jobs of this machine, oldest first. Doubtful processes are left out."""
    machine = Machine(proc)
    running = _build_jobs(machine, _find_places(machine, lenient=False))
    jobs = [job for job in running if _is_training_job(machine, job)]
    return tuple(
        sorted(jobs, key=lambda job: min(process.start_ticks for process in job.processes))
    )


def unseen(pid: int, proc: Path = PROC) -> str:
    """Why `find` has no job for this pid, as a sentence without its full stop."""
    if pid <= 0:
        return f"{pid} is no process id"
    if (proc / str(pid)).exists():
        return f"process {pid} is not part of a training job"
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


def _find_places(machine: Machine, *, lenient: bool) -> tuple[dict[int, Place], dict[int, int]]:
    """The place of each rank by pid, and the parent of each rank that multiprocessing started."""
    places = find_launched_ranks(machine)
    places.update(find_ray_ranks(machine, places))
    starters: dict[int, int] = {}
    for parent in list(machine.entries):
        if parent not in machine.children or not may_start_ranks(machine, parent):
            continue
        ranks = find_spawned_ranks(machine, parent, lenient=lenient and parent not in places)
        if ranks and not any(pid in places for pid in ranks):
            places.pop(parent, None)
            places.update(number_by_start(machine, parent, ranks))
            starters.update(dict.fromkeys(ranks, parent))
    places.update(find_unreadable_ranks(machine, places))
    for parent in list(machine.children):
        if name_launcher(machine.command(parent)) is not None:
            places.update(find_dead_ranks(machine, parent, places))
    alone = [pid for pid in _find_lone_programs(machine, places) if is_training(machine, pid)]
    places.update(dict.fromkeys(alone, ALONE))
    return places, starters


def _build_jobs(
    machine: Machine, ranks: tuple[dict[int, Place], dict[int, int]]
) -> list[RunningJob]:
    groups = group_ranks(machine, *ranks)
    assign_members(machine, groups)
    taken = {pid for group in groups for pid in group.members}
    for pid in _find_launchers_without_ranks(machine, taken):
        groups.append(Group(_find_single_program(machine, pid), [pid]))
    for group in groups:
        number_by_order(machine, group)
    assign_members(machine, groups)
    return [build_job(machine, group) for group in groups]


def _find_launchers_without_ranks(machine: Machine, taken: set[int]) -> list[int]:
    """Launchers without ranks: they wait for other hosts, or their ranks have ended."""
    launchers = [
        pid
        for pid in machine.entries
        if pid not in taken and launches_one_job(machine.command(pid))
    ]
    return [pid for pid in launchers if not set(machine.ancestors(pid)).intersection(launchers)]


def _find_single_program(machine: Machine, launcher: int) -> dict[int, Place]:
    """The only program below `accelerate launch`, which sets no variables for a single process."""
    if name_launcher(machine.command(launcher)) != "accelerate":
        return {}
    programs = [pid for pid in machine.children.get(launcher, ()) if may_start_ranks(machine, pid)]
    return {programs[0]: ALONE} if len(programs) == 1 else {}


def _is_training_job(machine: Machine, job: RunningJob) -> bool:
    """Whether the job trains: MPI and Slurm start any kind of program."""
    if job.launcher not in STARTS_ANY_PROGRAM:
        return True
    return any(
        runs_python(machine, rank.pid) or has_framework(machine, rank.pid) for rank in job.ranks
    )


def _find_lone_programs(machine: Machine, places: dict[int, Place]) -> list[int]:
    """Python programs without a rank or launcher that have loaded a framework: the topmost of
    each process tree. One that has started a launcher waits for what that starts."""
    programs = [
        pid
        for pid in machine.entries
        if may_start_ranks(machine, pid)
        and not any(
            above in places or name_launcher(machine.command(above))
            for above in (pid, *machine.ancestors(pid))
        )
        and not any(
            below in places or launches_one_job(machine.command(below))
            for below in machine.descendants(pid)
        )
        and has_framework(machine, pid)
    ]
    return [pid for pid in programs if not set(machine.ancestors(pid)).intersection(programs)]


def _build_named_job(machine: Machine, pid: int) -> tuple[RunningJob, ...]:
    """The job of a process that the user named: any Python program counts as a training."""
    for above in machine.ancestors(pid):
        same = machine.command(above) == machine.command(pid)
        started = same or is_spawned(machine.command(pid))
        if runs_python(machine, above) and started:
            pid = above
    candidates = [
        process for process in (pid, *machine.descendants(pid)) if may_start_ranks(machine, process)
    ]
    loaded = [candidate for candidate in candidates if has_framework(machine, candidate)]
    if pid in candidates:
        loaded.append(pid)
    if not loaded:
        return ()
    group = Group({loaded[0]: ALONE}, [loaded[0]])
    assign_members(machine, [group])
    return (build_job(machine, group),)


def find_step_daemons(machine: Machine, pids: Iterable[int]) -> tuple[int, ...]:
    """The pids of the slurmstepd processes that run the tasks of these srun commands; empty if no
    pid is an srun, or its tasks are unknown."""
    here = {pid: step for pid in machine.entries if (step := _parse_step(machine, pid)) is not None}
    step_daemons: dict[int, None] = {}
    for pid in pids:
        name = parse_program(machine.command(pid))[0]
        if program_name(name) != "srun":
            continue
        job = (machine.environment(pid) or {}).get("SLURM_JOB_ID")
        of_job = [daemon for daemon, (number, _) in here.items() if job in (None, number)]
        # A step that started before this command belongs to another one.
        began = machine.entries[pid].started
        younger = [daemon for daemon in of_job if machine.entries[daemon].started >= began]
        if len({here[daemon] for daemon in younger}) == 1:
            step_daemons.update(dict.fromkeys(younger))
    return tuple(step_daemons)


def _parse_step(machine: Machine, pid: int) -> tuple[str, str] | None:
    command = machine.command(pid)
    match = _STEP.match(command[0]) if command else None
    return (match[1], match[2]) if match else None


def build_job(machine: Machine, group: Group) -> RunningJob:
    """The job of a group whose members are assigned."""
    wanted = list_expected_ranks(group)
    name, pid = _find_launcher(machine, group)
    return RunningJob(
        launcher=name,
        launcher_pid=pid,
        world_size=find_world_size(machine, group),
        processes=tuple(_describe_process(machine, group, pid) for pid in group.members),
        missing=find_missing_ranks(group, wanted or ()),
        unread=_list_unread(machine, group, wanted),
        rendezvous=_find_rendezvous(group),
        apart=_are_apart(machine, group),
    )


def _are_apart(machine: Machine, group: Group) -> bool:
    alive = [pid for pid in group.places if not machine.entries[pid].zombie]
    started_together = all(place.source == ORDER for place in group.places.values())
    return started_together and len(alive) > 1 and all(has_no_peer(machine, pid) for pid in alive)


def _find_rendezvous(group: Group) -> tuple[str, ...]:
    places = group.places.values()
    return next((place.rendezvous for place in places if not place.one_host), ())


def _find_role(machine: Machine, group: Group, pid: int) -> str:
    if pid in group.places:
        return OTHER if group.places[pid].is_auxiliary else RANK
    command = machine.command(pid)
    if name_launcher(command) is not None or pid in group.starters:
        return LAUNCHER
    if machine.entries[pid].name == LOADER_THREAD:
        return LOADER
    rank = group.members[pid]
    return LOADER if rank is not None and _is_loader(machine, rank, pid) else OTHER


def _is_loader(machine: Machine, rank: int, pid: int) -> bool:
    """Whether a process is a data-loader worker of this rank. PyTorch before 2.6 does not name its
    workers: then every process that a rank forks or starts by multiprocessing counts."""
    siblings = machine.children.get(rank, ())
    if any(machine.entries[sibling].name == LOADER_THREAD for sibling in siblings):
        return False
    command, parent = machine.command(pid), machine.entries[pid].parent
    if parent != rank:
        return is_fork_server(machine.command(parent))
    return bool(command) and (command == machine.command(rank) or is_spawned(command))


def _find_launcher(machine: Machine, group: Group) -> tuple[str | None, int | None]:
    """The name and pid of the job's launcher."""
    candidates: list[tuple[int, str, int]] = []
    for pid, rank in group.members.items():
        name = name_launcher(machine.command(pid)) if rank is None else None
        if name is not None:
            place = _PREFERRED.index(name) if name in _PREFERRED else len(_PREFERRED)
            candidates.append((place, name, pid))
    if candidates:  # the outermost process comes first
        _, name, pid = min(candidates, key=lambda candidate: candidate[0])
        return name, pid
    sources = {place.source for place in group.places.values()}
    known = next(
        (name for program, name in _NAMES_WITHOUT_LAUNCHER.items() if program in sources), None
    )
    return known, min(group.starters, default=None)


def _describe_process(machine: Machine, group: Group, pid: int) -> JobProcess:
    entry = machine.entries[pid]
    rank = group.members[pid]
    place = None if rank is None else group.places[rank]
    status = machine.status(pid)
    uid = _parse_field(status.get("Uid", "").split(), 1)
    inner = _parse_field(status.get("NSpid", "").split(), -1)
    return JobProcess(
        pid=pid,
        parent=entry.parent,
        role=_find_role(machine, group, pid),
        state=entry.state,
        rank=place.rank if place else None,
        local_rank=place.local_rank if place else None,
        world_size=place.world_size if place else None,
        name=entry.name,
        command=tuple(word[:LONGEST_WORD] for word in machine.command(pid)[:MOST_WORDS]),
        start_ticks=entry.start_ticks,
        cpu_seconds=entry.cpu_seconds,
        uid=uid,
        user=None if uid is None else processes.name_user(uid),
        container=processes.find_container(machine.cgroup(pid)),
        inner_pid=None if inner == pid else inner,
        on_device=has_device_open(machine, pid) if machine.open_files(pid) else None,
    )


def _list_unread(
    machine: Machine, group: Group, wanted: tuple[int, ...] | None
) -> tuple[UnreadSource, ...]:
    unread = []
    for pid, place in group.places.items():
        if place.rank is not None or place.is_auxiliary or machine.entries[pid].zombie:
            continue
        if place.source == ORDER:
            met = place.local_rank is not None
            why = (
                "the job has other hosts"
                if met
                else "rank 0 cannot be distinguished from the others"
            )
            reason = f"multiprocessing started it, and {why}: its rank is unknown"
            unread.append(UnreadSource(pid, "environment", reason, _REMEDY_TORCHRUN))
        elif place.source == RAY:
            reason = "Ray Train passes a rank its number where only the rank can read it"
            remedy = "start the job under `mgpu-doctor run`"
            unread.append(UnreadSource(pid, "environment", reason, remedy))
        elif machine.environment(pid) is None:
            reason = (
                "the environment of another user's process is not readable: its rank is unknown"
            )
            remedy = f"run mgpu-doctor as {_owner(machine, pid)}"
            unread.append(UnreadSource(pid, "environment", reason, remedy))
        else:
            reason = "its environment contains only its local rank"
            unread.append(UnreadSource(pid, "environment", reason, _REMEDY_TORCHRUN))
    by_order = any(
        place.source == ORDER and place.rank is not None for place in group.places.values()
    )
    if by_order:
        reason = "the ranks are numbered in the order in which multiprocessing started them"
        unread.append(UnreadSource(None, "environment", reason, _REMEDY_TORCHRUN))
    elif wanted is None and group.places:
        reason = "the number of ranks on this host is unknown, and so is which are missing"
        remedy = "start the job with a launcher that sets LOCAL_WORLD_SIZE, such as torchrun"
        unread.append(UnreadSource(None, "environment", reason, remedy))
    return tuple(unread)


def _owner(machine: Machine, pid: int) -> str:
    uid = _parse_field(machine.status(pid).get("Uid", "").split(), 1)
    return "root" if uid is None or uid == 0 else f"{processes.name_user(uid)}, or as root"


def _parse_field(words: list[str], index: int) -> int | None:
    try:
        return int(words[index])
    except (IndexError, ValueError):
        return None
