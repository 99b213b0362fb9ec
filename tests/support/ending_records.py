"""Hand-made records of `ending.json`: what a host knows about failed processes (memory groups,
kernel kills, disks), for the tests of the rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.ending_records import (
    Counters,
    Ending,
    Kill,
    LimitedProcess,
    MemoryGroup,
    Place,
    Room,
)
from mgpu_doctor.case.host_samples import HostSample, Task
from mgpu_doctor.case.model import Case, ProcessEnd
from mgpu_doctor.diagnosis import folded
from mgpu_doctor.findings import Finding
from mgpu_doctor.rules.failures import (
    asked_to_end,
    failed_rendezvous,
    full_file_systems,
    job_failure,
    process_limits,
)
from mgpu_doctor.rules.hang import dead_rank_hang
from mgpu_doctor.rules.memory import host_oom
from tests.support.failure_cases import AT
from tests.support.recorded_diagnoses import examine

MIB, GIB = 1 << 20, 1 << 30
GROUP = "/sys/fs/cgroup/jobs/training"
FAMILIES = (
    job_failure,
    host_oom,
    full_file_systems,
    process_limits,
    asked_to_end,
    failed_rendezvous,
    dead_rank_hang,
)


def failure_findings(case: Case) -> list[Finding]:
    """The findings of all failure rules, folded so that each cause is reported once."""
    rules = [rule for family in FAMILIES for rule in family.RULES]
    return folded(examine(rules, measure(case)), rules)


def pid_of(rank: int) -> int:
    """The pid that `make_rank` gives to a rank."""
    return 1000 + rank


def group(killed: int | None = 0, limit: int | None = 64 * GIB, name: str = GROUP) -> MemoryGroup:
    return MemoryGroup(name, Counters(limit, killed=0), Counters(limit, GIB, limit, killed), AT)


def process(rank: int, **facts: Any) -> LimitedProcess:
    known = {"parent": 999, "files": 10, "most_files": 10, "groups": (GROUP,), **facts}
    return LimitedProcess(pid_of(rank), **known)


def kill(pid: int, *, by_group: bool | None = True, resident: int = 60 * GIB) -> Kill:
    return Kill(pid, AT, "python", resident, "/jobs/training" if by_group else None, by_group)


def place(
    path: str, role: str, size: int, free: int, *, before: int | None = None, inodes: int | None = 9
) -> Place:
    room = Room(size, free, 100, inodes, AT)
    return Place(path, (role,), replace(room, free=size if before is None else before), room, room)


def with_ending_record(case: Case, ranks: Sequence[int] = (0, 1, 2, 3), **facts: Any) -> Case:
    """The case with an ending record of its host; `facts` override its defaults, by which the
    kernel's log was readable and shows no kill."""
    known = {
        "since": 1000.0,
        "at": AT + 1,
        "log_trouble": None,
        "own_pids": True,
        "machine_kills": 0,
        "groups": (group(),),
        "processes": {pid_of(rank): process(rank) for rank in ranks},
        **facts,
    }
    return replace(case, endings=(Ending("node", **known),))


def sampled(
    case: Case, resident: Mapping[int, int], parents: Mapping[int, int] | None = None, **facts: Any
) -> Case:
    """The case with one host sample just before the failure. `resident`: pid -> resident bytes."""
    sample = HostSample(
        at=AT - 0.5,
        cpu_percent=None,
        cores=None,
        load1=None,
        memory_used=facts.get("used"),
        memory_total=facts.get("total"),
        processes={pid: (facts.get("cpu", 1.0), size) for pid, size in resident.items()},
        host="node",
        tasks={pid: Task(parent=parent) for pid, parent in (parents or {}).items()},
    )
    return replace(case, host_samples=(sample,))


def with_end(case: Case, pid: int, signal: int, at: float = AT - 0.1) -> Case:
    """The case in which a process that is not a rank ended by a signal."""
    return replace(case, ends=(*case.ends, ProcessEnd(pid, None, signal, at)))
