"""Was it memory? What the kernel, its counters and a process's own limits tell of one death.

In this order: the kernel's log names the process; the counter of its control group rose; the
machine's counter rose while nobody could read the log. Where the log was read and names others
alone, the rank was killed by somebody else.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from mgpu_doctor.analysis.postmortem.child_processes import (
    children_of,
    ended_children,
    ending_of,
    just_before,
    last_seen,
    not_long_before,
    parse_lost_workers,
)
from mgpu_doctor.analysis.postmortem.rank_failures import FailureKind, RankFailure
from mgpu_doctor.case.ending_records import Ending, Kill, MemoryGroup
from mgpu_doctor.case.model import Case, Error
from mgpu_doctor.findings import Evidence
from mgpu_doctor.formatting import format_bytes

BY_LOG, BY_GROUP, BY_MACHINE, BY_FULL = 0.99, 0.95, 0.85, 0.6
"""Confidence: the kernel's log names the pid; the counter of the very group that held it rose; the
counter of the whole machine rose; its group was full in the last sample and nobody counted."""
CLOCKS_DIFFER = 60.0
"""Seconds by which the kernel's clock may be behind: it is not corrected as ours is."""
FULL = 0.95
"""Share of a limit from which a group counts as full in a sample: samples are a second old."""

REFUSED = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|\[Errno 12\]|Cannot allocate memory"
    r"|Unable to allocate [\d.]+ [KMGTP]?i?B for an array|not enough memory: you tried to allocate"
)
"""What allocators say whom the kernel gave no memory: torch's CPU allocator, NumPy, errno 12."""
_ON_A_DEVICE = re.compile(r"CUDA|HIP|XPU|MPS|NCCL")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """`pid`: who was killed, the rank or a child of it. `bound`: what was full, in words."""

    confidence: float
    pid: int | None
    child: bool
    bound: str
    limit: int | None
    group: str | None
    evidence: tuple[Evidence, ...]


def out_of_memory(failure: RankFailure, case: Case) -> OutOfMemory | None:
    """Why host memory ended this rank or one of its children; None: nothing says that it did."""
    if (
        failure.kind is FailureKind.EXCEPTION
        and failure.error is not None
        and _refused(failure.error)
    ):
        return _refusal(failure, case)
    ending = ending_of(failure, case)
    if ending is None:
        return None
    for pid in _suspects(failure, case):
        found = _by_log(ending, pid, failure, case)
        if found is None and pid in _killed(failure, case):
            found = _by_counters(ending, pid, failure, case)
        if found is not None:
            confidence, bound, limit, group, evidence = found
            return OutOfMemory(confidence, pid, pid != failure.pid, bound, limit, group, evidence)
    return None


def cleared(failure: RankFailure, case: Case) -> bool:
    """Whether the kernel's log was read and does not name this process."""
    ending = ending_of(failure, case)
    if ending is None or failure.pid is None or ending.log_trouble is not None:
        return False
    return ending.own_pids and all(kill.pid != failure.pid for kill in ending.kills)


def _refused(error: Error) -> bool:
    if error.type.rpartition(".")[2] in ("MemoryError", "_ArrayMemoryError"):
        return True
    return bool(REFUSED.search(error.message)) and not _ON_A_DEVICE.search(error.message)


def _suspects(failure: RankFailure, case: Case) -> tuple[int, ...]:
    """Whose kill would explain the failure."""
    if failure.kind in (FailureKind.KILLED, FailureKind.VANISHED):
        return (failure.pid,) if failure.pid is not None else ()
    return tuple(sorted(children_of(failure, case)))


def _killed(failure: RankFailure, case: Case) -> tuple[int, ...]:
    """Those of them that SIGKILL ended, or nobody knows what."""
    if failure.kind in (FailureKind.KILLED, FailureKind.VANISHED):
        return _suspects(failure, case)
    return ended_children(failure, case, signal.SIGKILL)


_Told = tuple[float, str, "int | None", "str | None", tuple[Evidence, ...]]
"""Confidence, what was full, its limit, the group's name, evidence."""


def _by_log(ending: Ending, pid: int, failure: RankFailure, case: Case) -> _Told | None:
    kill = next((one for one in reversed(ending.kills) if one.pid == pid), None)
    if kill is None or not ending.own_pids:
        return None
    started, lost_workers = case.job.started, parse_lost_workers(failure)
    if started is not None and kill.at is not None and kill.at < started - CLOCKS_DIFFER:
        return None  # another process that had the same pid
    if (
        pid != failure.pid
        and (lost_workers is None or pid not in lost_workers.pids)
        and not just_before(kill.at, failure)
    ):
        return None  # a child that died long before
    group = _limited_group(ending, kill, pid)
    evidence = [Evidence("the kernel's OOM killer took process", pid, "pid", source="kernel log")]
    if kill.resident is not None:
        evidence.append(
            Evidence("its resident memory then", kill.resident, "bytes", source="kernel log")
        )
    bound, limit, name = _bound(group, by_group=kill.by_group)
    if group is not None:
        evidence += _counted(group)
    return BY_LOG, bound, limit, name, tuple(evidence)


def _by_counters(ending: Ending, pid: int, failure: RankFailure, case: Case) -> _Told | None:
    if ending.log_trouble is None and ending.own_pids:
        return None  # the log was read and does not name it
    process = ending.processes.get(pid)
    own = [group for name in process.groups if (group := ending.group(name))] if process else []
    inner = own[0] if own else None
    if inner is not None and inner.killed and not_long_before(inner.at, failure):
        bound, limit, name = _bound(_tightest(own), by_group=None)
        return BY_GROUP, bound, limit, name, tuple(_counted(inner))
    counted = inner is not None and inner.killed is not None
    if not counted and ending.machine_kills and not_long_before(ending.machine_at, failure):
        evidence = Evidence(
            "processes that the OOM killer took on this host meanwhile",
            ending.machine_kills,
            "processes",
            0,
            "/proc/vmstat",
        )
        bound, limit, name = _bound(_tightest(own), by_group=None)
        return BY_MACHINE, bound, limit, name, (evidence,)
    if not counted and ending.machine_kills is None:
        return _by_fullness(_tightest(own), failure, case)
    return None


def _by_fullness(group: MemoryGroup | None, failure: RankFailure, case: Case) -> _Told | None:
    sample = last_seen(case, failure.host, failure.at)
    if sample is None or sample.memory_used is None or not sample.memory_total:
        return None
    if sample.memory_used < FULL * sample.memory_total:
        return None
    evidence = Evidence(
        "memory in use in the last sample before",
        sample.memory_used,
        "bytes",
        sample.memory_total,
        "host samples",
    )
    bound, limit, name = _bound(group, by_group=None)
    return BY_FULL, bound, limit or sample.memory_total, name, (evidence,)


def _refusal(failure: RankFailure, case: Case) -> OutOfMemory:
    """The kernel refused memory and the process ended itself: `ulimit -v`, or all is committed."""
    ending = ending_of(failure, case)
    process = ending.processes.get(failure.pid) if ending is not None and failure.pid else None
    limits = {
        name: soft
        for name in ("address_space", "data")
        if process is not None and (soft := process.limits.get(name, (None, None))[0]) is not None
    }
    evidence = []
    for name, soft in limits.items():
        flag = "ulimit -v" if name == "address_space" else "ulimit -d"
        source = f"/proc/PID/limits ({flag})"
        evidence.append(Evidence(f"limit of its {words_of(name)}", soft, "bytes", source=source))
    least = min(limits.values(), default=None)
    flag = "`ulimit -v`" if limits.get("address_space") == least else "`ulimit -d`"
    if least is None:
        bound = "the system refused it memory"
    else:
        bound = f"its limit of {format_bytes(least)} ({flag}) was reached"
    return OutOfMemory(failure.confidence, failure.pid, False, bound, least, None, tuple(evidence))


def words_of(limit: str) -> str:
    return limit.replace("_", " ")


def _limited_group(ending: Ending, kill: Kill, pid: int) -> MemoryGroup | None:
    """The group whose limit the kernel's log says was reached; the log knows its path alone."""
    if kill.by_group is False:
        return None
    if kill.limited is not None:
        named = [group for group in ending.groups if group.name.endswith(kill.limited)]
        return min(named, key=lambda group: len(group.name), default=None)
    process = ending.processes.get(pid)
    names = process.groups if process is not None else ()
    return _tightest([group for name in names if (group := ending.group(name))])


def _tightest(groups: list[MemoryGroup]) -> MemoryGroup | None:
    limited = [group for group in groups if group.now.limit or group.before.limit]
    return min(limited, key=lambda group: group.now.limit or group.before.limit or 0, default=None)


def _bound(
    group: MemoryGroup | None, *, by_group: bool | None
) -> tuple[str, int | None, str | None]:
    """What was full, its limit and its name."""
    limit = (group.now.limit or group.before.limit) if group is not None else None
    if group is not None and limit is not None:
        return f"the {format_bytes(limit)} of its control group were full", limit, group.name
    if by_group:
        return "the memory of its control group was full", None, None
    if by_group is False:
        return "the whole machine had no memory left", None, None
    return "memory was full", None, None


def _counted(group: MemoryGroup) -> list[Evidence]:
    source = f"control group {group.name}"
    found = []
    if group.killed:
        found.append(
            Evidence("processes killed there meanwhile", group.killed, "processes", 0, source)
        )
    limit, peak = group.now.limit or group.before.limit, group.now.peak or group.now.used
    if limit is not None:
        found.append(Evidence("most memory in use there", peak, "bytes", limit, source))
    return found
