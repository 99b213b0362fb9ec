"""Control groups of processes: limits of memory and CPU time, and how often memory ran out.

Files: cgroups(7), the kernel's cgroup-v2.rst, sched-bwc.rst and cgroup-v1/memory.rst. `oom_kill`
of /proc/vmstat (since Linux 4.13) counts every kill of the OOM killer on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PERIOD_MICROSECONDS = 100_000
"""The kernel's default period of a CPU quota."""
_LONGEST = 300
Json = dict[str, Any]

NO_LIMIT = 1 << 60
"""Bytes from which a limit of version 1 means no limit: it writes 2**63 - 4096."""
_LONGEST_GROUP = 600
_MOST_BYTES = 16_384


class MemoryLimit(NamedTuple):
    """A memory limit in bytes, and where to read how much of it is in use."""

    limit: int
    usage_file: Path
    stat_file: Path
    inactive_key: str
    active_key: str = "active_file"

    def used(self) -> tuple[int | None, int | None]:
        """Bytes in use, without inactive page cache, and the bytes of active page cache among them;
        None if unknown."""
        usage = _number(self.usage_file)
        if usage is None:
            return None, None
        counters = {}
        for line in _text(self.stat_file).splitlines():
            key, _, value = line.partition(" ")
            if key in (self.inactive_key, self.active_key) and value.isdigit():
                counters[key] = int(value)
        used = max(0, usage - counters.get(self.inactive_key, 0))
        cache = counters.get(self.active_key)
        return used, None if cache is None else min(used, cache)


def find_memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The lowest memory limit of this process's groups; None: no limit, or not readable."""
    limits = [
        MemoryLimit(limit, folder / "memory.current", folder / "memory.stat", "inactive_file")
        for folder in _folders(root, "")
        if (limit := _number(folder / "memory.max")) is not None
    ]
    limits += [
        MemoryLimit(
            limit, folder / "memory.usage_in_bytes", folder / "memory.stat", "inactive_file"
        )
        for folder in _folders(root, "memory")
        if (limit := _number(folder / "memory.limit_in_bytes")) is not None
    ]
    return min(limits, key=lambda memory: memory.limit, default=None)


class Quota(NamedTuple):
    """A group whose CPU time is limited to `cores` cores."""

    name: str
    """Where it is mounted; the same for all processes of the group."""
    cores: float
    stat_file: Path

    def now(self) -> dict[str, float]:
        """`quota` (cores) and `throttled`: seconds so far, summed over cores, in which runnable
        threads had no quota left; the latter is missing if unknown."""
        for line in _text(self.stat_file).splitlines():
            key, _, value = line.partition(" ")
            unit = _THROTTLED.get(key)
            if unit is not None and value.isdigit():
                return {"quota": self.cores, "throttled": round(int(value) * unit, 6)}
        return {"quota": self.cores}


_THROTTLED = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Key in cpu.stat (version 2, version 1) -> its unit in seconds."""


def find_cpu_quotas(root: Path = Path("/"), pid: int | str = "self") -> tuple[Quota, ...] | None:
    """The groups of a process that limit its CPU time, innermost first; None if its groups are
    not readable."""
    quotas = []
    has_groups = False
    for folder in _folders(root, "", pid):
        has_groups = True
        allowed, _, period = _text(folder / "cpu.max").partition(" ")
        if allowed.isdigit():
            quotas.append(_quota(root, folder, int(allowed), period))
    for folder in _folders(root, "cpu", pid):
        has_groups = True
        quota = _number(folder / "cpu.cfs_quota_us")
        if quota is not None:
            quotas.append(_quota(root, folder, quota, _text(folder / "cpu.cfs_period_us")))
    return tuple(quotas) if has_groups else None


def list_memory_folders(
    root: Path = Path("/"), pid: int | str = "self"
) -> tuple[tuple[int, Path], ...]:
    """Version and folder of the groups that account for a process's memory, innermost first; empty
    if not readable."""
    folders = [(2, folder) for folder in _folders(root, "", pid)]
    folders += [(1, folder) for folder in _folders(root, "memory", pid)]
    return tuple(
        (version, folder) for version, folder in folders if accounts_memory(version, folder)
    )


def accounts_memory(version: int, folder: Path) -> bool:
    """Whether this folder is a group of this version that counts memory."""
    name = "memory.events" if version == 2 else "memory.usage_in_bytes"
    return (folder / name).exists()


def count_quota_cpus(root: Path = Path("/")) -> int | None:
    """The lowest CPU quota in cores, rounded up; None: no quota."""
    least = min((quota.cores for quota in find_cpu_quotas(root) or ()), default=None)
    return None if least is None else max(1, math.ceil(least))


def _quota(root: Path, folder: Path, allowed: int, period: str) -> Quota:
    cores = round(allowed / _positive(period), 3)
    return Quota(f"/{folder.relative_to(root)}"[-_LONGEST:], cores, folder / "cpu.stat")


def _folders(root: Path, controller: str, pid: int | str = "self") -> Iterator[Path]:
    """The group's folder and those above it, up to the mount point.

    `controller` is empty for version 2. In a container the path that the kernel names may lie
    outside of what is mounted: then only the mount point is returned, or nothing if the process is
    in a sibling group (`/../NAME`), which is invisible from here.
    """
    for line in _text(root / f"proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and ".." not in path.split("/"):
            mounts = root / "sys/fs/cgroup"
            mount = mounts / controller if controller else mounts
            folder = mount / path.lstrip("/")
            while folder != mount and mount in folder.parents:
                yield folder
                folder = folder.parent
            yield mount


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """The file's number; None for `max` (version 2) and -1 (version 1), which mean no limit."""
    text = _text(path)
    return int(text) if text.isdigit() else None


def _positive(text: str) -> int:
    return int(text) if text.isdigit() and int(text) > 0 else PERIOD_MICROSECONDS


def find_memory_groups(pid: int | str, root: Path = Path("/")) -> dict[str, tuple[int, Path]]:
    """Name -> version and folder of the memory groups above a process, the innermost first."""
    return _named(list_memory_folders(root, pid), root)


def find_groups_at(path: str, root: Path = Path("/")) -> dict[str, tuple[int, Path]]:
    """The memory group with the kernel's name `path`, as `find_memory_groups` returns it; empty if
    not readable."""
    if ".." in path.split("/"):
        return {}
    mounts = root / "sys/fs/cgroup"
    folders = ((2, mounts / path.lstrip("/")), (1, mounts / "memory" / path.lstrip("/")))
    return _named([folder for folder in folders if accounts_memory(*folder)], root)


def _named(folders: Iterable[tuple[int, Path]], root: Path) -> dict[str, tuple[int, Path]]:
    return {
        f"/{folder.relative_to(root)}"[-_LONGEST_GROUP:]: (version, folder)
        for version, folder in folders
    }


def read_memory_counters(version: int, folder: Path) -> Json:
    """The group's current counters, ready for JSON: `limit`, `swap_limit`, `used`, `peak` (bytes),
    `killed` (processes of this group, on older kernels also of those below) and `refused` (times
    that the limit was reached with nothing left to reclaim). Unreadable values and missing limits
    are null."""
    return _version_2(folder) if version == 2 else _version_1(folder)


def count_machine_kills(root: Path = Path("/")) -> int | None:
    """Processes that the OOM killer killed on this machine since boot."""
    return _keyed(root / "proc/vmstat").get("oom_kill")


def _version_2(folder: Path) -> Json:
    below = _keyed(folder / "memory.events")
    own = _keyed(folder / "memory.events.local") or below
    return {
        "limit": _limit_or_none(folder / "memory.max"),
        "swap_limit": _limit_or_none(folder / "memory.swap.max"),
        "used": _limit_or_none(folder / "memory.current"),
        "peak": _limit_or_none(folder / "memory.peak"),
        "killed": own.get("oom_kill"),
        "refused": below.get("oom"),
    }


def _version_1(folder: Path) -> Json:
    return {
        "limit": _limit_or_none(folder / "memory.limit_in_bytes"),
        "swap_limit": _limit_or_none(folder / "memory.memsw.limit_in_bytes"),
        "used": _limit_or_none(folder / "memory.usage_in_bytes"),
        "peak": _limit_or_none(folder / "memory.max_usage_in_bytes"),
        "killed": _keyed(folder / "memory.oom_control").get("oom_kill"),
        "refused": _limit_or_none(folder / "memory.failcnt"),
    }


def _keyed(path: Path) -> dict[str, int]:
    """The `key number` lines of a flat file, as a dictionary."""
    values = {}
    for line in _bounded_text(path).splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            values[key] = int(value)
    return values


def _limit_or_none(path: Path) -> int | None:
    text = _bounded_text(path)
    return int(text) if text.isdigit() and len(text) < 20 and int(text) < NO_LIMIT else None


def _bounded_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
