"""Whether host memory ran out: what the kernel and a process's own limits show of one failure.

In this order: the kernel's log names the process; the counter of its control group rose; the
machine's counter rose while the log was unreadable. If the log was read and names only others,
another process killed the rank. Pure.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from mgpu_doctor.analysis.postmortem.child_processes import (
    children_of,
    ended_children,
    ending_of,
    just_before,
    last_seen,
    not_long_before,
    parse_lost_workers,
)
from mgpu_doctor.analysis.postmortem.rank_failures import (
    FailureKind,
    FullMemory,
    MemoryProof,
    OutOfMemory,
    RankFailure,
)
from mgpu_doctor.case.ending_records import Ending, Kill, MemoryGroup
from mgpu_doctor.case.model import Case, Error

BY_LOG, BY_GROUP, BY_MACHINE, BY_FULL = 0.99, 0.95, 0.85, 0.6
"""Confidence: the kernel's log names the pid; the counter of the very group that held it rose; the
counter of the whole machine rose; its group was full in the last sample without a counter."""
CLOCKS_DIFFER = 60.0
"""Seconds by which the kernel's clock may be behind: unlike the wall clock it is not corrected."""
FULL = 0.95
"""Share of a limit from which a group counts as full in a sample: samples are a second old."""

REFUSED = re.compile(
    r"DefaultCPUAllocator: can't allocate memory|\[Errno 12\]|Cannot allocate memory"
    r"|Unable to allocate [\d.]+ [KMGTP]?i?B for an array|not enough memory: you tried to allocate"
)
"""What allocators say whom the kernel gave no memory: torch's CPU allocator, NumPy, errno 12."""
_ON_A_DEVICE = re.compile(r"CUDA|HIP|XPU|MPS|NCCL")


def find_out_of_memory(failure: RankFailure, case: Case) -> OutOfMemory | None:
    """How host memory ended this rank or one of its children; None: no evidence that it did."""
    if (
        failure.kind is FailureKind.EXCEPTION
        and failure.error is not None
        and _was_refused(failure.error)
    ):
        return _refusal(failure, case)
    ending = ending_of(failure, case)
    if ending is None:
        return None
    for pid in _suspects(failure, case):
        cause = _by_log(ending, pid, failure, case)
        if cause is None and pid in _killed(failure, case):
            cause = _by_counters(ending, pid, failure, case)
        if cause is not None:
            return cause
    return None


def is_cleared(failure: RankFailure, case: Case) -> bool:
    """Whether the kernel's log was read and does not name this process."""
    ending = ending_of(failure, case)
    if ending is None or failure.pid is None or ending.log_trouble is not None:
        return False
    return ending.own_pids and all(kill.pid != failure.pid for kill in ending.kills)


def _was_refused(error: Error) -> bool:
    if error.type.rpartition(".")[2] in ("MemoryError", "_ArrayMemoryError"):
        return True
    return bool(REFUSED.search(error.message)) and not _ON_A_DEVICE.search(error.message)


def _suspects(failure: RankFailure, case: Case) -> tuple[int, ...]:
    """Whose kill would explain the failure."""
    if failure.kind in (FailureKind.KILLED, FailureKind.VANISHED):
        return (failure.pid,) if failure.pid is not None else ()
    return tuple(sorted(children_of(failure, case)))


def _killed(failure: RankFailure, case: Case) -> tuple[int, ...]:
    """Those that SIGKILL or an unknown cause ended."""
    if failure.kind in (FailureKind.KILLED, FailureKind.VANISHED):
        return _suspects(failure, case)
    return ended_children(failure, case, signal.SIGKILL)


def _by_log(ending: Ending, pid: int, failure: RankFailure, case: Case) -> OutOfMemory | None:
    kill = next((kill for kill in reversed(ending.kills) if kill.pid == pid), None)
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
    cause = OutOfMemory(
        MemoryProof.KERNEL_LOG,
        BY_LOG,
        pid,
        pid != failure.pid,
        counted=group,
        resident=kill.resident,
    )
    return _with_limit(cause, group, by_group=kill.by_group)


def _by_counters(ending: Ending, pid: int, failure: RankFailure, case: Case) -> OutOfMemory | None:
    if ending.log_trouble is None and ending.own_pids:
        return None  # the log was read and does not name it
    process = ending.processes.get(pid)
    own = [group for name in process.groups if (group := ending.group(name))] if process else []
    inner, is_child = own[0] if own else None, pid != failure.pid
    if inner is not None and inner.killed and not_long_before(inner.at, failure):
        cause = OutOfMemory(MemoryProof.GROUP_COUNTER, BY_GROUP, pid, is_child, counted=inner)
        return _with_limit(cause, _tightest(own))
    counted = inner is not None and inner.killed is not None
    if not counted and ending.machine_kills and not_long_before(ending.machine_at, failure):
        cause = OutOfMemory(
            MemoryProof.MACHINE_COUNTER,
            BY_MACHINE,
            pid,
            is_child,
            machine_kills=ending.machine_kills,
        )
        return _with_limit(cause, _tightest(own))
    if counted or ending.machine_kills is not None:
        return None
    return _by_fullness(pid, _tightest(own), failure, case)


def _by_fullness(
    pid: int, group: MemoryGroup | None, failure: RankFailure, case: Case
) -> OutOfMemory | None:
    sample = last_seen(case, failure.host, failure.at)
    if sample is None or sample.memory_used is None or not sample.memory_total:
        return None
    if sample.memory_used < FULL * sample.memory_total:
        return None
    cause = OutOfMemory(
        MemoryProof.FULL_SAMPLE,
        BY_FULL,
        pid,
        pid != failure.pid,
        limit=sample.memory_total,
        sampled=(sample.memory_used, sample.memory_total),
    )
    return _with_limit(cause, group)


def _refusal(failure: RankFailure, case: Case) -> OutOfMemory:
    """The kernel refused memory and the process ended itself: `ulimit -v`, or all is committed."""
    ending = ending_of(failure, case)
    process = ending.processes.get(failure.pid) if ending is not None and failure.pid else None
    limits = tuple(
        (name, soft)
        for name in ("address_space", "data")
        if process is not None and (soft := process.limits.get(name, (None, None))[0]) is not None
    )
    return OutOfMemory(
        MemoryProof.REFUSAL,
        failure.confidence,
        failure.pid,
        False,
        FullMemory.PROCESS_LIMIT if limits else FullMemory.REFUSED,
        min((soft for _, soft in limits), default=None),
        process_limits=limits,
    )


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
    limited = [group for group in groups if limit_of(group)]
    return min(limited, key=lambda group: limit_of(group) or 0, default=None)


def limit_of(group: MemoryGroup) -> int | None:
    """The group's limit in bytes, as it was last read."""
    return group.now.limit or group.before.limit


def _with_limit(
    cause: OutOfMemory, group: MemoryGroup | None, *, by_group: bool | None = None
) -> OutOfMemory:
    """The same with what was full. `by_group`: whether the kernel's log says that it was a control
    group; None: it does not say."""
    limit = limit_of(group) if group is not None else None
    if group is not None and limit is not None:
        return replace(cause, full=FullMemory.GROUP, limit=limit, group=group.name)
    known = {True: FullMemory.GROUP, False: FullMemory.MACHINE, None: FullMemory.UNKNOWN}
    return replace(cause, full=known[by_group])
