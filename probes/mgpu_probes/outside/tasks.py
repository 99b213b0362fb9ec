"""What the scheduler did to some processes: who ran, who stood ready without a core.

Sources: /proc/PID/stat (proc(5)) and /proc/PID/task/TID/schedstat, whose first two numbers are
nanoseconds on a core and nanoseconds ready to run without one (Linux, sched-stats.rst).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mgpu_probes.outside import cgroup
from mgpu_probes.outside.limits import room

Json = dict[str, Any]

THREADS = 32
"""Most threads of one process that are looked at: a look costs some 10 µs each."""
THREADS_IN_ALL = 512
RENEWED_EVERY = 8
"""Looks after which the control groups of a process are read anew: they seldom change."""
_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST = 500
_MOST = 16_384
_NANO = 1e-9


def stat(proc: Path, pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty where there is no such process."""
    # The name, in brackets, may hold anything: what follows the last bracket counts.
    fields = read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
    return fields if len(fields) >= 22 else []


class _Limits(NamedTuple):
    """The quotas above a process. `looks`: how often this has been used."""

    started: str
    quotas: tuple[cgroup.Quota, ...] | None
    looks: int = 0


class Tasks:
    """Remembers what seldom changes. For one thread."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._proc = root / "proc"
        self._limits: dict[int, _Limits] = {}

    def look(self, pids: Iterable[int]) -> Json:
        """`tasks` ({pid as text: {…}}) and `groups`, ready for JSON.

        Of a task: `parent`, `state` (letter of its main thread), `threads`, `age` (seconds since
        it started), `faults` (pages so far that the kernel had to give it anew) and `kernel`
        (seconds so far in the kernel) of all its threads, `ran` and `queued` (seconds so far of its
        main thread on a core, and ready without one), `all_queued` (the latter of its first threads
        together), `cores` (list, as the kernel writes it), `limits` (its control groups that have a
        CPU quota, the innermost first), `room` (bytes that its limits of memory leave it).
        Of a group: `quota` (cores), `throttled` (seconds so far, of all cores). What cannot be read
        is left out."""
        tasks: Json = {}
        groups: dict[str, cgroup.Quota] = {}
        limits: dict[int, _Limits] = {}
        left, uptime = THREADS_IN_ALL, self._uptime()
        for pid in pids:
            fields = stat(self._proc, pid)
            if not fields:
                continue
            limits[pid] = self._limits_of(pid, fields[19])
            quotas = limits[pid].quotas
            threads = int(fields[17])
            facts: Json = {
                "parent": int(fields[1]),
                "state": fields[0],
                "threads": threads,
                "faults": int(fields[7]),
                "kernel": int(fields[12]) / _TICKS,
            }
            if uptime is not None:
                facts["age"] = round(max(0.0, uptime - int(fields[19]) / _TICKS), 2)
            main = _schedstat(f"{self._proc}/{pid}/schedstat")
            if main is not None:
                facts["ran"], facts["queued"] = main
                others, looked_at = self._others(pid, min(threads - 1, THREADS, left))
                facts["all_queued"] = round(main[1] + others, 6)
                left -= looked_at
            if cores := _cores(f"{self._proc}/{pid}/status"):
                facts["cores"] = cores
            if (bytes_left := room(pid, self._root)) is not None:
                facts["room"] = bytes_left
            if quotas is not None:
                facts["limits"] = [quota.name for quota in quotas]
                groups.update((quota.name, quota) for quota in quotas)
            tasks[str(pid)] = facts
        self._limits = limits
        return {"tasks": tasks, "groups": {name: quota.now() for name, quota in groups.items()}}

    def _uptime(self) -> float | None:
        first = read(f"{self._proc}/uptime").partition(" ")[0]
        return float(first) if first else None

    def _limits_of(self, pid: int, started: str) -> _Limits:
        known = self._limits.get(pid)
        if known is None or known.started != started or known.looks >= RENEWED_EVERY:
            known = _Limits(started, cgroup.quotas(self._root, pid))
        return known._replace(looks=known.looks + 1)

    def _others(self, pid: int, most: int) -> tuple[float, int]:
        """Seconds that threads beside the main one stood ready without a core; how many these
        are: the oldest, which are those that compute, rather than those that come and go."""
        if most <= 0:
            return 0.0, 0
        folder = f"{self._proc}/{pid}/task"
        try:
            names = sorted(os.listdir(folder), key=int)
        except (OSError, ValueError):
            return 0.0, 0
        oldest = [name for name in names if name != str(pid)][:most]
        found = [_schedstat(f"{folder}/{name}/schedstat") for name in oldest]
        return sum(one[1] for one in found if one is not None), len(oldest)


def _schedstat(path: str) -> tuple[float, float] | None:
    """Seconds on a core, and ready without one; None where the kernel does not count."""
    fields = read(path).split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return round(int(fields[0]) * _NANO, 6), round(int(fields[1]) * _NANO, 6)


def _cores(status: str) -> str | None:
    for line in read(status).split("\n"):
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return value.strip()[:_LONGEST] or None
    return None


def read(path: str) -> str:
    """The first 16 KiB of a file of /proc; empty where it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST).decode("utf-8", "replace")
    except OSError:
        return ""  # the process ended meanwhile
    finally:
        os.close(descriptor)
