"""Processes of this machine as /proc tells of them. Facts only; Linux alone.

Fields of /proc/PID/stat: proc(5). Every function tolerates a process that ends while it looks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_EXIT_CODE = 52 - 3
"""Field 52 of /proc/PID/stat, counted from the state (field 3)."""
_MOST = 16_384
_GONE = frozenset("ZXx")  # zombie, dead


class Process(NamedTuple):
    """One process. `start_ticks`: clock ticks since boot, which tells a reused pid apart."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    name: str

    @property
    def ended(self) -> bool:
        """True for a zombie: it runs no more, only its parent has not asked for its exit code."""
        return self.state in _GONE


def read(pid: int, proc: Path = PROC) -> Process | None:
    """The process with this pid, a zombie too; None where there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
    # The name stands in parentheses and may itself hold parentheses and spaces.
    opening, closing = text.find("("), text.rfind(")")
    fields = text[closing + 1 :].split()
    if opening < 0 or closing < opening or len(fields) < 20:
        return None
    try:
        return Process(
            pid=pid,
            parent=int(fields[1]),
            state=fields[0],
            start_ticks=int(fields[19]),
            name=text[opening + 1 : closing],
        )
    except ValueError:
        return None


def start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When the process started, in clock ticks since boot; None where there is none."""
    process = read(pid, proc)
    return None if process is None else process.start_ticks


def alive(pid: int, started: int | None = None, proc: Path = PROC) -> bool:
    """Whether this very process still runs. `started`: its start ticks, against a reused pid;
    None or 0: unknown, then the pid alone decides. A zombie is not alive."""
    process = read(pid, proc)
    if process is None or process.ended:
        return False
    return not started or process.start_ticks == started


def user(pid: int, proc: Path = PROC) -> int | None:
    """The user whose process this is; root for one that hides itself from others. None where there
    is none."""
    try:
        return (proc / str(pid)).stat().st_uid
    except OSError:
        return None


def wait_status(pid: int, started: int | None = None, proc: Path = PROC) -> int | None:
    """How a process ended that its parent has not waited for, as waitpid(2) would tell it; None
    where it still runs, is gone, is not the one that `started` then (clock ticks), or somebody
    else's: of those the kernel says 0, whatever happened."""
    process = read(pid, proc)
    if process is None or not process.ended or started not in (None, 0, process.start_ticks):
        return None
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        if os.geteuid() not in (0, (proc / str(pid)).stat().st_uid):
            return None
        return int(fields[_EXIT_CODE])
    except (OSError, ValueError, IndexError):
        return None


def boot_id(proc: Path = PROC) -> str | None:
    """The kernel's random id of this boot, a UUID in lower case; None where unknown."""
    try:
        text = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.strip().lower() or None


def descendants(pid: int, proc: Path = PROC) -> tuple[Process, ...]:
    """Every process below `pid`, nearest first. One pass over /proc."""
    children: dict[int, list[Process]] = {}
    try:
        entries = [entry.name for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return ()
    for entry in entries:
        process = read(int(entry), proc)
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [pid]
    for parent in queue:
        for child in sorted(children.pop(parent, ()), key=lambda process: process.pid):
            found.append(child)
            queue.append(child.pid)
    return tuple(found)
