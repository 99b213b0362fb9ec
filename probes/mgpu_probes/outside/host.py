"""Reads this machine's CPU and memory, and what some processes use of them, from /proc.

Files: proc(5); /proc/pressure is the kernel's psi.rst.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mgpu_probes.outside import cgroup
from mgpu_probes.outside.tasks import Tasks, read, stat

Json = dict[str, Any]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_IDLE = (3, 4)  # columns of /proc/stat: idle, iowait
_LEAST_TICKS = 20
"""Of all cores together. A share of fewer is noise: the kernel counts whole ticks of 10 ms."""
_IOWAIT, _STEAL = 4, 7
_COLUMNS = 8  # those after them repeat time that `user` and `nice` already hold
_PRESSURES = ("cpu", "io", "memory")
CLOSE_LOOKS = 30
"""So many samples look at the tasks, then each tenth: rates over minutes need no more."""
THEN_EACH = 10


class Host:
    """The machine and its cgroup's limits. Remembers the last CPU counters, to take differences.

    `closely`: also what the scheduler and the control groups did to the processes, now and then;
    `standstill`: at each sample how long tasks stood still.
    """

    def __init__(
        self, root: Path = Path("/"), *, closely: bool = False, standstill: bool = False
    ) -> None:
        self._standing = standstill
        self._proc = root / "proc"
        self._limit = cgroup.memory(root)
        self._cores = _cores(cgroup.cpus(root))
        self._before = self._ticks()
        self._tasks = Tasks(root) if closely else None
        self._taken = 0

    def sample(self, pids: Iterable[int] = ()) -> Json:
        """One reading, ready for JSON: `at` (seconds since the epoch), `host` (its name),
        `cpu_percent` (0..100 of all cores since the last sample), `cores` (that this process may
        use), `load1`, `memory_used` and `memory_total` (bytes; of the control group where it has a
        limit), `processes` ({pid as text: [CPU seconds, resident bytes]}, without those that are
        gone). What cannot be read is null.

        Where it looks closely also `tasks` and `groups` (see `Tasks.look`); there and for
        `standstill` `busy`, `iowait` and `steal` (seconds since boot, of all cores together) and
        `pressure` ({cpu, io, memory: seconds since boot in which some task stood still for want
        of it})."""
        pids = tuple(pids)
        used, total, cache = self._memory()
        before, self._before = self._before, self._ticks()
        sample: Json = {
            "at": time.time(),
            "host": os.uname().nodename,
            "cpu_percent": _cpu_percent(before, self._before),
            "cores": self._cores,
            "load1": self._load(),
            "memory_used": used,
            "memory_total": total,
            "processes": {
                str(pid): reading for pid in pids if (reading := self._process(pid)) is not None
            },
        }
        if cache is not None:
            sample["memory_cache"] = cache
        if self._tasks is not None:
            if self._taken < CLOSE_LOOKS or self._taken % THEN_EACH == 0:
                sample |= {**self._tasks.look(pids), **self._standstill()}
            self._taken += 1
        if self._standing:
            sample |= self._standstill()
        return sample

    def _standstill(self) -> Json:
        ticks = self._before
        facts: Json = {
            "busy": _busy(ticks) / _TICKS if ticks else None,
            "iowait": ticks[_IOWAIT] / _TICKS if ticks else None,
            "steal": ticks[_STEAL] / _TICKS if ticks else None,
            "pressure": {},
        }
        for name in _PRESSURES:
            some = self._read(f"pressure/{name}").partition("\n")[0]
            total = some.rpartition("total=")[2]
            if some.startswith("some ") and total.isdigit():
                facts["pressure"][name] = int(total) * 1e-6
        return facts

    def _ticks(self) -> list[int]:
        """Of all cores since boot, by column of /proc/stat; empty where it cannot be read. Once a
        sample: the kernel counts every interrupt for it."""
        fields = self._read("stat").partition("\n")[0].split()[1 : _COLUMNS + 1]
        return [int(field) for field in fields] if len(fields) == _COLUMNS else []

    def _load(self) -> float | None:
        first = self._read("loadavg").partition(" ")[0]
        return float(first) if first else None

    def _memory(self) -> tuple[int | None, int | None, int | None]:
        sizes = {}
        for line in self._read("meminfo").splitlines():
            key, _, value = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                sizes[key] = int(value.split()[0]) * 1024
                if len(sizes) == 2:
                    break
        total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
        if self._limit is not None and (total is None or self._limit.limit < total):
            used, cache = self._limit.used()
            return used, self._limit.limit, cache
        if total is None or available is None:
            return None, total, None
        return total - available, total, 0  # what is available includes what could be dropped

    def _process(self, pid: int) -> list[float | int] | None:
        fields = stat(self._proc, pid)
        if not fields:
            return None
        return [(int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE]

    def _read(self, name: str) -> str:
        return read(f"{self._proc}/{name}")


def _busy(ticks: list[int]) -> int:
    return sum(ticks) - sum(ticks[column] for column in _IDLE)


def _cpu_percent(before: list[int], now: list[int]) -> float | None:
    if not before or not now or sum(now) - sum(before) < _LEAST_TICKS:
        return None
    busy = _busy(now) - _busy(before)
    return round(min(100.0, max(0.0, 100.0 * busy / (sum(now) - sum(before)))), 1)


def _cores(quota: int | None) -> int | None:
    # Which cores: the scheduler's answer where there is one (Linux), else all of them.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(filter(None, (usable, quota)), default=None)
