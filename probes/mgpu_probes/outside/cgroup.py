"""The limits of this process's control group: memory and CPU time. Versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PERIOD_MICROSECONDS = 100_000
"""The kernel's default period of a CPU quota."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory limit in bytes, and where to read how much of it is in use."""

    limit: int
    usage_file: Path
    stat_file: Path
    inactive_key: str

    def used(self) -> int | None:
        """Bytes in use without the page cache that the kernel can drop at once."""
        usage = _number(self.usage_file)
        if usage is None:
            return None
        for line in _text(self.stat_file).splitlines():
            key, _, value = line.partition(" ")
            if key == self.inactive_key and value.isdigit():
                return max(0, usage - int(value))
        return usage


def memory(root: Path = Path("/")) -> Memory | None:
    """The tightest memory limit above this process; None: no limit, or none to be seen."""
    limits = [
        Memory(limit, folder / "memory.current", folder / "memory.stat", "inactive_file")
        for folder in _folders(root, "")
        if (limit := _number(folder / "memory.max")) is not None
    ]
    limits += [
        Memory(limit, folder / "memory.usage_in_bytes", folder / "memory.stat", "inactive_file")
        for folder in _folders(root, "memory")
        if (limit := _number(folder / "memory.limit_in_bytes")) is not None
    ]
    return min(limits, key=lambda memory: memory.limit, default=None)


def cpus(root: Path = Path("/")) -> int | None:
    """How many cores' worth of time the quota leaves, rounded up; None: no quota."""
    quotas = []
    for folder in _folders(root, ""):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit():
            quotas.append(int(quota) / _positive(period))
    for folder in _folders(root, "cpu"):
        allowed = _number(folder / "cpu.cfs_quota_us")
        if allowed is not None:
            quotas.append(allowed / _positive(_text(folder / "cpu.cfs_period_us")))
    return max(1, math.ceil(min(quotas))) if quotas else None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder and those above it, up to the mount point.

    `controller` is empty for version 2. In a container the path that the kernel names may lie
    outside of what is mounted: then the mount point alone is looked at.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mounts = root / "sys/fs/cgroup"
            mount = mounts / controller if controller else mounts
            folder = mount / path.lstrip("/")
            while folder != mount and mount in folder.parents:
                yield folder
                folder = folder.parent
            yield mount


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """None where there is none: `max` (version 2) and -1 (version 1) mean no limit."""
    text = _text(path)
    return int(text) if text.isdigit() else None


def _positive(text: str) -> int:
    return int(text) if text.isdigit() and int(text) > 0 else PERIOD_MICROSECONDS
