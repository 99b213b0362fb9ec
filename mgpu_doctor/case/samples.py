"""Host samples of a recording as typed facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, TypeGuard

from mgpu_doctor.case.files import Json, moment, number, text, whole
from mgpu_doctor.case.host import Group, HostSample, Task

if TYPE_CHECKING:
    from mgpu_doctor.case.model import ProcessEnd

MOST_PROCESSES = 4096
MOST_SECONDS = 1e15
MOST_BYTES = 1 << 62
STATES = tuple("RSDTtZXxIPKW")
"""Letters of /proc/PID/stat (proc(5))."""
MOST_CORES = 8192
"""The most that Linux can be built for."""
MOST_GROUPS = 1024
MOST_LIMITS = 16


def host_sample(line: Mapping[str, Json]) -> HostSample | None:
    """One line of host.jsonl; None where it has no time."""
    at = moment(line.get("at"))
    if at is None:
        return None
    return HostSample(
        at=at,
        cpu_percent=number(line.get("cpu_percent")),
        cores=whole(line.get("cores")),
        load1=number(line.get("load1")),
        memory_used=whole(line.get("memory_used")),
        memory_total=whole(line.get("memory_total")),
        processes=_processes(line.get("processes")),
        host=text(line.get("host"), 64),
        tasks=_tasks(line.get("tasks")),
        groups=_groups(line.get("groups")),
        busy=number(line.get("busy")),
        iowait=number(line.get("iowait")),
        steal=number(line.get("steal")),
        pressure=_pressure(line.get("pressure")),
        memory_cache=whole(line.get("memory_cache")),
    )


def process_end(line: Mapping[str, Json]) -> tuple[ProcessEnd, int | None] | None:
    """One line of exits.jsonl and the process's start ticks; None where it tells of none."""
    pid, at = whole(line.get("pid"), 1), moment(line.get("at"))
    if pid is None or at is None:
        return None
    from mgpu_doctor.case.model import ProcessEnd  # not for a host alone

    code = whole(line.get("exit_code"), 0, 255)
    end = ProcessEnd(pid, code, whole(line.get("signal"), 1, 64), at)
    return end, whole(line.get("start_ticks"), 1)


def _processes(entries: Json) -> dict[int, tuple[float, int]]:
    """`{"pid": [CPU seconds, resident bytes]}`: JSON has no whole numbers as keys."""
    found: dict[int, tuple[float, int]] = {}
    if not isinstance(entries, dict):
        return found
    for pid, values in _bounded(entries, MOST_PROCESSES):
        if not (_is_pid(pid) and _is_list(values) and len(values) == 2):
            continue
        seconds, resident = values
        # A long run has many thousands of these: what is usual is found at once.
        if type(seconds) is not float or not 0 <= seconds < MOST_SECONDS:
            seconds = number(seconds)
        if type(resident) is not int or not 0 <= resident < MOST_BYTES:
            resident = whole(resident)
        if seconds is not None and resident is not None:
            found[int(pid)] = (seconds, resident)
    return found


def _tasks(entries: Json) -> dict[int, Task]:
    if not isinstance(entries, dict):
        return {}
    return {
        int(pid): Task(
            parent=whole(one.get("parent")),
            state=state if (state := one.get("state")) in STATES else None,
            threads=whole(one.get("threads")),
            age=number(one.get("age")),
            faults=whole(one.get("faults")),
            kernel=number(one.get("kernel")),
            ran=number(one.get("ran")),
            queued=number(one.get("queued")),
            all_queued=number(one.get("all_queued")),
            cores=cores(one.get("cores")),
            limits=names(one.get("limits")),
            room=whole(one.get("room")),
        )
        for pid, one in _bounded(entries, MOST_PROCESSES)
        if _is_pid(pid) and isinstance(one, dict)
    }


@lru_cache(64)
def _ranges(listed: str) -> frozenset[int] | None:
    found: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        low, high = first.strip(), (last or first).strip()
        if not (low.isdecimal() and high.isdecimal() and len(low) < 6 and len(high) < 6):
            return None
        found.update(range(int(low), min(int(high), MOST_CORES - 1) + 1))
    return frozenset(found) or None


def cores(listed: Json) -> frozenset[int] | None:
    """A list of cores as the kernel writes it, `0-3,8`; None where it is none."""
    return _ranges(listed) if isinstance(listed, str) and len(listed) <= 500 else None


def _groups(entries: Json) -> dict[str, Group]:
    if not isinstance(entries, dict):
        return {}
    return {
        known: Group(number(one.get("quota")), number(one.get("throttled")))
        for name, one in _bounded(entries, MOST_GROUPS)
        if isinstance(one, dict) and (known := text(name)) is not None
    }


def names(entries: Json) -> tuple[str, ...] | None:
    """A list of names; None where it is none."""
    if not _is_list(entries):
        return None
    return tuple(name for one in entries[:MOST_LIMITS] if (name := text(one)) is not None)


def _pressure(entries: Json) -> dict[str, float]:
    if not isinstance(entries, dict):
        return {}
    known = {name: number(entries.get(name)) for name in ("cpu", "io", "memory")}
    return {name: seconds for name, seconds in known.items() if seconds is not None}


def _bounded(entries: dict[str, Json], most: int) -> Iterable[tuple[str, Json]]:
    return entries.items() if len(entries) <= most else islice(entries.items(), most)


def _is_pid(key: str) -> bool:
    return len(key) < 12 and key.isascii() and key.isdigit()


def _is_list(value: Json) -> TypeGuard[list[Json]]:
    return isinstance(value, list)
