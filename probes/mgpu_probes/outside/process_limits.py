"""Resource limits of a process and how close it is to them. Files: proc(5), getrlimit(2)."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

Json = dict[str, Any]

LIMITS = {
    "Max open files": "files",
    "Max cpu time": "cpu_seconds",
    "Max address space": "address_space",
    "Max data size": "data",
    "Max file size": "file_size",
    "Max processes": "processes",
    "Max core file size": "core",
}
"""Name in /proc/PID/limits -> our name. In bytes, except files, seconds and processes."""
MOST_LISTED = 20_000
_MOST_BYTES = 8192
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USED = {"address_space": 0, "data": 5}
"""Limit -> the column of /proc/PID/statm with what counts towards it, in pages (proc(5))."""


def read_limits(pid: int, root: Path = Path("/")) -> dict[str, list[int | None]]:
    """{name: [soft, hard]} of a process, without unlimited limits; None means that only one of
    the two is unlimited. Empty also if the process is gone or not accessible."""
    try:
        with (root / f"proc/{pid}/limits").open("rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return {}
    return {name: [*both] for name, *both in _parsed(text)}


def measure_memory_headroom(pid: int, root: Path = Path("/")) -> int | None:
    """Bytes left below the process's `ulimit -v` and `-d`; None: it has no such limit, is gone,
    or is not accessible."""
    limits = read_limits(pid, root)
    bounds = {column: limits[name][0] for name, column in _USED.items() if name in limits}
    if all(bound is None for bound in bounds.values()):
        return None
    try:
        used = (root / f"proc/{pid}/statm").read_text("ascii").split()
        left = [most - int(used[at]) * _PAGE for at, most in bounds.items() if most is not None]
    except (OSError, ValueError, IndexError):
        return None
    return max(0, min(left))


@lru_cache(64)
def _parsed(text: str) -> tuple[tuple[str, int | None, int | None], ...]:
    """The limits in the text, cached: the processes of a job mostly have the same text."""
    found = []
    for line in text.splitlines():
        for title, name in LIMITS.items():
            values = line[len(title) :].split()
            if line.startswith(title) and len(values) >= 2:
                soft, hard = _value(values[0]), _value(values[1])
                if (soft, hard) != (None, None):
                    found.append((name, soft, hard))
    return tuple(found)


def count_open_files(pid: int, root: Path = Path("/")) -> int | None:
    """Number of files that the process has open, at most MOST_LISTED; None: it is gone, or not
    accessible. Since Linux 6.2, the folder's size is that number, so nothing is listed."""
    folder = root / f"proc/{pid}/fd"
    try:
        if size := folder.stat().st_size if root == Path("/") else 0:
            return min(size, MOST_LISTED)
        with os.scandir(folder) as entries:
            return sum(1 for _, _ in zip(entries, range(MOST_LISTED), strict=False))
    except OSError:
        return None


def _value(text: str) -> int | None:
    return int(text) if text.isdigit() else None
