"""A job's processes as facts: the role of each, and what could not be told."""

from __future__ import annotations

from mgpu_probes.outside import owner
from mgpu_probes.outside.jobs import evidence, launchers, numbers
from mgpu_probes.outside.jobs.found import (
    LAUNCHER,
    LOADER,
    OTHER,
    RANK,
    FoundJob,
    FoundProcess,
    FoundUntold,
)
from mgpu_probes.outside.jobs.groups import Group
from mgpu_probes.outside.jobs.machine import Machine
from mgpu_probes.outside.jobs.spawned import ORDER
from mgpu_probes.outside.jobs.unnamed import RAY

MOST_WORDS = 64
LONGEST_WORD = 400
_LET_IT_BE_TOLD = "start the job with torchrun, or under `mgpu-doctor run`"
_WITHOUT_LAUNCHER = {
    "TF_CONFIG": "TF_CONFIG",
    "lightning": "lightning",
    ORDER: "mp.spawn",
    "alone": "python",
}
"""What tells a rank its place -> what the job is known by."""
_PREFERRED = ("horovodrun", "deepspeed", "accelerate", "composer", "torchrun", "mpirun")
"""Of several launchers within one another the one that people know the job by."""


def build(machine: Machine, group: Group) -> FoundJob:
    """`group`: with its members."""
    wanted = numbers.expected(group)
    name, pid = _launcher(machine, group)
    return FoundJob(
        launcher=name,
        launcher_pid=pid,
        world_size=numbers.world_size(machine, group),
        processes=tuple(_process(machine, group, pid) for pid in group.members),
        missing=numbers.missing(group, wanted or ()),
        untold=_untold(machine, group, wanted),
    )


def _role(machine: Machine, group: Group, pid: int) -> str:
    if pid in group.seats:
        return OTHER if group.seats[pid].beside else RANK
    command = machine.command(pid)
    if launchers.launcher(command) is not None or pid in group.starters:
        return LAUNCHER
    if machine.entries[pid].name == evidence.LOADER_THREAD:
        return LOADER
    rank = group.members[pid]
    return LOADER if rank is not None and _like_a_loader(machine, rank, pid) else OTHER


def _like_a_loader(machine: Machine, rank: int, pid: int) -> bool:
    """PyTorch before 2.6 does not name its workers: then what a rank forks, or starts by
    multiprocessing, is one."""
    siblings = machine.children.get(rank, ())
    if any(machine.entries[one].name == evidence.LOADER_THREAD for one in siblings):
        return False
    command, parent = machine.command(pid), machine.entries[pid].parent
    if parent != rank:
        return launchers.fork_server(machine.command(parent))
    return bool(command) and (command == machine.command(rank) or launchers.spawned(command))


def _launcher(machine: Machine, group: Group) -> tuple[str | None, int | None]:
    """The name and pid of the launcher that the job is known by."""
    found: list[tuple[int, str, int]] = []
    for pid, rank in group.members.items():
        name = launchers.launcher(machine.command(pid)) if rank is None else None
        if name is not None:
            place = _PREFERRED.index(name) if name in _PREFERRED else len(_PREFERRED)
            found.append((place, name, pid))
    if found:  # of several of one name the outermost, which comes first
        _, name, pid = min(found, key=lambda one: one[0])
        return name, pid
    sources = {seat.told_by for seat in group.seats.values()}
    known = next((name for one, name in _WITHOUT_LAUNCHER.items() if one in sources), None)
    return known, min(group.starters, default=None)


def _process(machine: Machine, group: Group, pid: int) -> FoundProcess:
    entry = machine.entries[pid]
    rank = group.members[pid]
    seat = None if rank is None else group.seats[rank]
    status = machine.status(pid)
    uid = _whole(status.get("Uid", "").split(), 1)
    inner = _whole(status.get("NSpid", "").split(), -1)
    return FoundProcess(
        pid=pid,
        parent=entry.parent,
        role=_role(machine, group, pid),
        state=entry.state,
        rank=seat.rank if seat else None,
        local_rank=seat.local_rank if seat else None,
        world_size=seat.world_size if seat else None,
        name=entry.name,
        command=tuple(word[:LONGEST_WORD] for word in machine.command(pid)[:MOST_WORDS]),
        start_ticks=entry.start_ticks,
        cpu_seconds=entry.cpu_seconds,
        uid=uid,
        user=None if uid is None else owner.user(uid),
        container=owner.container(machine.cgroup(pid)),
        inner_pid=None if inner == pid else inner,
        on_device=evidence.device(machine, pid) if machine.open_files(pid) else None,
    )


def _untold(
    machine: Machine, group: Group, wanted: tuple[int, ...] | None
) -> tuple[FoundUntold, ...]:
    found = []
    for pid, seat in group.seats.items():
        if seat.rank is not None or seat.beside or machine.entries[pid].zombie:
            continue
        if seat.told_by == ORDER:
            met = seat.local_rank is not None
            why = "the job has other hosts" if met else "rank 0 cannot be told from the others"
            reason = f"multiprocessing started it, and {why}: its rank is unknown"
            found.append(FoundUntold(pid, "environment", reason, _LET_IT_BE_TOLD))
        elif seat.told_by == RAY:
            reason = "Ray Train tells a rank its number where only the rank sees it"
            remedy = "start the job under `mgpu-doctor run`"
            found.append(FoundUntold(pid, "environment", reason, remedy))
        elif machine.environment(pid) is None:
            reason = "another user's environment may not be read: its rank is unknown"
            remedy = f"run mgpu-doctor as {_owner(machine, pid)}"
            found.append(FoundUntold(pid, "environment", reason, remedy))
        else:
            reason = "its environment tells its rank on this host alone"
            found.append(FoundUntold(pid, "environment", reason, _LET_IT_BE_TOLD))
    by_order = any(seat.told_by == ORDER and seat.rank is not None for seat in group.seats.values())
    if by_order:
        reason = "the ranks are told by the order in which multiprocessing started them"
        found.append(FoundUntold(None, "environment", reason, _LET_IT_BE_TOLD))
    elif wanted is None and group.seats:
        reason = "nothing tells how many ranks this host should have, hence which are missing"
        remedy = "start the job with a launcher that sets LOCAL_WORLD_SIZE, such as torchrun"
        found.append(FoundUntold(None, "environment", reason, remedy))
    return tuple(found)


def _owner(machine: Machine, pid: int) -> str:
    uid = _whole(machine.status(pid).get("Uid", "").split(), 1)
    return "root" if uid is None or uid == 0 else f"{owner.user(uid)}, or as root"


def _whole(words: list[str], index: int) -> int | None:
    try:
        return int(words[index])
    except (IndexError, ValueError):
        return None
