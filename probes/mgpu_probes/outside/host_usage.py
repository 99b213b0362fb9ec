"""CPU and memory use of this machine and of some processes, and how long they waited for a core.

Files: proc(5); /proc/pressure is the kernel's psi.rst. The first two numbers of
/proc/PID/task/TID/schedstat are nanoseconds on a core, and nanoseconds ready to run without one
(Linux, sched-stats.rst)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mgpu_probes.outside import cgroups
from mgpu_probes.outside.process_limits import measure_memory_headroom

if TYPE_CHECKING:
    from mgpu_probes.outside.tcp_links import TcpLinks

Json = dict[str, Any]

THREADS = 32
"""Most threads of one process that are read: each costs about 10 µs."""
THREADS_IN_ALL = 512
RENEWED_EVERY = 8
"""Polls after which the control groups of a process are read again: they rarely change."""
_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST = 500
_MOST = 16_384
_NANO = 1e-9
_SECTOR = 512
"""Bytes: the unit of /proc/diskstats, whatever the disk (Linux, iostats.rst)."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_IDLE = (3, 4)  # columns of /proc/stat: idle, iowait
_LEAST_TICKS = 20
"""Fewest ticks, over all cores, for a CPU share: fewer are noise, since a tick is 10 ms."""
_IOWAIT, _STEAL = 4, 7
_COLUMNS = 8  # the later ones repeat time that is already in `user` and `nice`
_PRESSURES = ("cpu", "io", "memory")
SHARE_BETWEEN = 1 / 20
"""Tasks are read when a twentieth of all samples came since the last time: after 40 s of imports on
a busy machine, 12 s of steps still have three readings or more."""
MOST_BETWEEN = 10
"""Then in every tenth sample, however long the run lasts."""
LINKS_EACH = 3
"""Connections are read then and in every third sample: a link that becomes slow shows it within a
minute, and the kernel lists a hundred sockets in less than a millisecond."""


def read_stat(proc: Path, pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if there is no such process."""
    # The name, in brackets, may contain anything, so use what follows the last bracket.
    fields = read_proc_file(f"{proc}/{pid}/stat").rpartition(")")[2].split()
    return fields if len(fields) >= 22 else []


class _Limits(NamedTuple):
    """The CPU quotas of a process's groups. `looks`: how often this has been used."""

    started: str
    quotas: tuple[cgroups.Quota, ...] | None
    samples: int = 0


class Tasks:
    """Samples tasks, and caches what rarely changes. For one thread."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._proc = root / "proc"
        self._limits: dict[int, _Limits] = {}

    def sample(self, pids: Iterable[int]) -> Json:
        """`tasks` ({pid as text: {…}}) and `groups`, ready for JSON.

        A task has `parent`, `state` (letter of its main thread), `threads`, `age` (seconds since it
        started), `faults` (page faults so far) and `kernel` (seconds so far in the kernel) of all
        its threads, `ran` and `queued` (seconds so far that its main thread ran on a core, and
        waited for one), `all_queued` (the latter summed over its oldest threads), `cores` (list, as
        the kernel writes it), `limits` (its control groups with a CPU quota, innermost first),
        `room` (bytes left below its memory limits). A group has `quota` (cores) and `throttled`
        (seconds so far, summed over cores). Unreadable values are left out."""
        tasks: Json = {}
        groups: dict[str, cgroups.Quota] = {}
        limits: dict[int, _Limits] = {}
        left, uptime = THREADS_IN_ALL, self._uptime()
        for pid in pids:
            fields = read_stat(self._proc, pid)
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
            if cores := _allowed_cores(f"{self._proc}/{pid}/status"):
                facts["cores"] = cores
            if (bytes_left := measure_memory_headroom(pid, self._root)) is not None:
                facts["room"] = bytes_left
            if quotas is not None:
                facts["limits"] = [quota.name for quota in quotas]
                groups.update((quota.name, quota) for quota in quotas)
            tasks[str(pid)] = facts
        self._limits = limits
        return {"tasks": tasks, "groups": {name: quota.now() for name, quota in groups.items()}}

    def _uptime(self) -> float | None:
        first = read_proc_file(f"{self._proc}/uptime").partition(" ")[0]
        return float(first) if first else None

    def _limits_of(self, pid: int, started: str) -> _Limits:
        known = self._limits.get(pid)
        if known is None or known.started != started or known.samples >= RENEWED_EVERY:
            known = _Limits(started, cgroups.find_cpu_quotas(self._root, pid))
        return known._replace(samples=known.samples + 1)

    def _others(self, pid: int, most: int) -> tuple[float, int]:
        """Seconds that threads other than the main one waited for a core, and how many threads
        were read: the oldest ones, which are more likely to compute than short-lived ones."""
        if most <= 0:
            return 0.0, 0
        folder = f"{self._proc}/{pid}/task"
        try:
            names = sorted(os.listdir(folder), key=int)
        except (OSError, ValueError):
            return 0.0, 0
        oldest = [name for name in names if name != str(pid)][:most]
        waits = [_schedstat(f"{folder}/{name}/schedstat") for name in oldest]
        return sum(wait[1] for wait in waits if wait is not None), len(oldest)


def _schedstat(path: str) -> tuple[float, float] | None:
    """Seconds on a core, and waiting for one; None if the kernel does not count them."""
    fields = read_proc_file(path).split()
    if len(fields) < 2 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    return round(int(fields[0]) * _NANO, 6), round(int(fields[1]) * _NANO, 6)


def _allowed_cores(status: str) -> str | None:
    for line in read_proc_file(status).split("\n"):
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return value.strip()[:_LONGEST] or None
    return None


def read_proc_file(path: str) -> str:
    """The first 16 KiB of a file of /proc; empty if it cannot be read."""
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


class _Hardware:
    """Which devices in a folder of sysfs are hardware: they have an entry `device`. The folder is
    read again when the kernel lists other names than before; a listing takes longer than the rest
    of a sample."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed: tuple[str, ...] | None = None
        self._hardware: frozenset[str] = frozenset()

    def among(self, listed: tuple[str, ...]) -> frozenset[str]:
        """The hardware in the folder. `listed`: the names that the kernel lists now."""
        if listed != self._listed:
            self._listed, self._hardware = listed, self._read()
        return self._hardware

    def _read(self) -> frozenset[str]:
        folder = str(self._folder)
        try:
            names = os.listdir(folder)
        except OSError:
            return frozenset()
        return frozenset(name for name in names if os.path.exists(f"{folder}/{name}/device"))


class HostUsage:
    """Samples the machine and its control group's limits. Keeps the last CPU counters.

    `closely`: also read scheduling and control groups of the processes, in some of the samples.
    `standstill`: also read in each sample how long tasks were stalled.
    """

    def __init__(
        self, root: Path = Path("/"), *, closely: bool = False, standstill: bool = False
    ) -> None:
        self._standing = standstill
        self._proc = root / "proc"
        self._limit = cgroups.find_memory_limit(root)
        self._cores = _usable_cores(cgroups.count_quota_cpus(root))
        self._before = self._ticks()
        self._tasks: Tasks | None = None
        self._links: TcpLinks | None = None
        if closely:
            from mgpu_probes.outside.tcp_links import TcpLinks  # others do without it

            self._tasks, self._links = Tasks(root), TcpLinks(self._proc)
        self._disks = _Hardware(root / "sys/block")
        self._cards = _Hardware(root / "sys/class/net")
        self._taken = self._looked = 0

    def sample(self, pids: Iterable[int] = ()) -> Json:
        """One reading, ready for JSON: `at` (seconds since the epoch), `host` (its name),
        `cpu_percent` (0..100 of all cores since the last sample), `cores` (that this process may
        use), `load1`, `memory_used` and `memory_total` (bytes; of the control group where it has a
        limit), `processes` ({pid as text: [CPU seconds, resident bytes]}, without ended ones).
        Unreadable values are null.

        With `closely`, some samples also have `tasks` and `groups` (see `Tasks.sample`), and, where
        processes have connections to other hosts, `addresses` and `links` (`TcpLinks`). These, and
        all samples with `standstill`, have `busy`, `iowait` and `steal` (seconds since boot, summed
        over cores), `pressure` ({cpu, io, memory: seconds since boot in which some task was stalled
        for lack of it}) and `traffic` ({read, written, received, sent: bytes since boot, of disks
        and of network interfaces})."""
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
        if self._tasks is not None and self._links is not None:
            self._taken += 1
            between = self._taken - self._looked
            if between >= min(self._taken * SHARE_BETWEEN, MOST_BETWEEN):
                self._looked = self._taken
                sample |= {**self._tasks.sample(pids), **self._standstill()}
            if self._looked == self._taken or self._taken % LINKS_EACH == 0:
                sample |= self._links.sample(pids)
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
        facts["traffic"] = {**self._disk_traffic(), **self._network_traffic()}
        return facts

    def _disk_traffic(self) -> Json:
        """Bytes of whole disks: not of partitions, nor of devices that are made of disks."""
        lines = [line.split() for line in self._read("diskstats").splitlines()]
        counters = {fields[2]: (fields[5], fields[9]) for fields in lines if len(fields) >= 10}
        wanted = self._disks.among(tuple(counters))
        if not wanted:
            return {}
        chosen = [counters[name] for name in wanted if name in counters]
        read = sum(int(sectors) for sectors, _ in chosen) * _SECTOR
        written = sum(int(sectors) for _, sectors in chosen) * _SECTOR
        return {"read": read, "written": written}

    def _network_traffic(self) -> Json:
        """Bytes of the interfaces that are hardware; in a container without any, of all but the
        loopback interface. What goes past the kernel, such as RDMA, is not counted."""
        counters = {}
        for line in self._read("net/dev").splitlines()[2:]:
            name, _, fields = line.partition(":")
            numbers = fields.split()
            if len(numbers) >= 9:
                counters[name.strip()] = int(numbers[0]), int(numbers[8])
        wanted = self._cards.among(tuple(counters)) or counters.keys() - {"lo"}
        chosen = [counters[name] for name in wanted if name in counters]
        if not chosen:
            return {}
        return {"received": sum(one[0] for one in chosen), "sent": sum(one[1] for one in chosen)}

    def _ticks(self) -> list[int]:
        """Ticks of all cores since boot, by column of /proc/stat; empty if it cannot be read.
        Called once per sample, because the kernel sums up all interrupts for it."""
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
        return total - available, total, 0  # `available` includes droppable page cache

    def _process(self, pid: int) -> list[float | int] | None:
        fields = read_stat(self._proc, pid)
        if not fields:
            return None
        return [(int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE]

    def _read(self, name: str) -> str:
        return read_proc_file(f"{self._proc}/{name}")


def _busy(ticks: list[int]) -> int:
    return sum(ticks) - sum(ticks[column] for column in _IDLE)


def _cpu_percent(before: list[int], now: list[int]) -> float | None:
    if not before or not now or sum(now) - sum(before) < _LEAST_TICKS:
        return None
    busy = _busy(now) - _busy(before)
    return round(min(100.0, max(0.0, 100.0 * busy / (sum(now) - sum(before)))), 1)


def _usable_cores(quota: int | None) -> int | None:
    # The cores that the scheduler allows (Linux), else all of them.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(filter(None, (usable, quota)), default=None)
