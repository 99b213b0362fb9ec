"""How often the kernel refused memory or killed for it, by control group and machine-wide.

Files: the kernel's cgroup-v2.rst and cgroup-v1/memory.rst; `oom_kill` of /proc/vmstat (since Linux
4.13) counts every kill of the OOM killer on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mgpu_probes.outside import cgroup

Json = dict[str, Any]

NO_LIMIT = 1 << 60
"""From here on a limit of version 1 means none: it writes 2**63 - 4096."""
_LONGEST = 600
_MOST_BYTES = 16_384


def groups_of(pid: int | str, root: Path = Path("/")) -> dict[str, tuple[int, Path]]:
    """Name -> version and folder of the memory groups above a process, the innermost first."""
    return _named(cgroup.memory_folders(root, pid), root)


def groups_at(path: str, root: Path = Path("/")) -> dict[str, tuple[int, Path]]:
    """The memory group that the kernel calls `path`, where it can be seen, as `groups_of` gives
    it."""
    if ".." in path.split("/"):
        return {}
    mounts = root / "sys/fs/cgroup"
    folders = ((2, mounts / path.lstrip("/")), (1, mounts / "memory" / path.lstrip("/")))
    return _named([one for one in folders if cgroup.accounts_memory(*one)], root)


def _named(folders: Iterable[tuple[int, Path]], root: Path) -> dict[str, tuple[int, Path]]:
    return {
        f"/{folder.relative_to(root)}"[-_LONGEST:]: (version, folder) for version, folder in folders
    }


def read(version: int, folder: Path) -> Json:
    """One group now, ready for JSON: `limit`, `swap_limit`, `used`, `peak` (bytes) and `killed`
    (processes of this very group, or of it and those below where the kernel tells no finer),
    `refused` (times the limit was met with nothing left to drop). What cannot be read is null; a
    limit is null too where there is none."""
    return _version_2(folder) if version == 2 else _version_1(folder)


def machine_kills(root: Path = Path("/")) -> int | None:
    """Processes that the OOM killer killed on this machine since boot."""
    return _keyed(root / "proc/vmstat").get("oom_kill")


def _version_2(folder: Path) -> Json:
    below = _keyed(folder / "memory.events")
    own = _keyed(folder / "memory.events.local") or below
    return {
        "limit": _number(folder / "memory.max"),
        "swap_limit": _number(folder / "memory.swap.max"),
        "used": _number(folder / "memory.current"),
        "peak": _number(folder / "memory.peak"),
        "killed": own.get("oom_kill"),
        "refused": below.get("oom"),
    }


def _version_1(folder: Path) -> Json:
    return {
        "limit": _number(folder / "memory.limit_in_bytes"),
        "swap_limit": _number(folder / "memory.memsw.limit_in_bytes"),
        "used": _number(folder / "memory.usage_in_bytes"),
        "peak": _number(folder / "memory.max_usage_in_bytes"),
        "killed": _keyed(folder / "memory.oom_control").get("oom_kill"),
        "refused": _number(folder / "memory.failcnt"),
    }


def _keyed(path: Path) -> dict[str, int]:
    """`key number` lines of a flat file."""
    found = {}
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if value.isdigit():
            found[key] = int(value)
    return found


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() and len(text) < 20 and int(text) < NO_LIMIT else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
