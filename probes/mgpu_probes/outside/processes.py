"""Processes of this machine: state, parent, exit status and owner. Linux only.

Files: proc(5), cgroups(7). Every function tolerates a process that ends while it is read."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from mgpu_probes.outside.kernel_log import sees_own_pids

PROC = Path("/proc")
_EXIT_CODE = 52 - 3
"""Field 52 of /proc/PID/stat, counted from the state (field 3)."""
_MOST = 16_384
_GONE = frozenset("ZXx")  # zombie, dead
MOST_BYTES = 16 << 10
MOST_PROCESSES = 256
# Compiled at the first path, by `re` itself: few processes are asked for their container.
_CONTAINER = (
    r"/(?:lxc(?:\.payload)?[/.]|machine\.slice/machine-)(\w[\w.-]{0,127}?)(?:\.scope)?(?:/|$)"
)
_LONG_ID = r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])"


class Process(NamedTuple):
    """One process. `find_start_ticks`: clock ticks since boot, which identify a reused pid."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    name: str

    @property
    def ended(self) -> bool:
        """Whether it is a zombie: it has ended, but its parent has not read its exit code."""
        return self.state in _GONE


def split_stat(text: str) -> tuple[str, list[str]]:
    """The name in /proc/PID/stat, and the fields from the state on; no fields if damaged."""
    # The name is in parentheses and may itself contain parentheses and spaces.
    opening, closing = text.find("("), text.rfind(")")
    if opening < 0 or closing < opening:
        return "", []
    return text[opening + 1 : closing], text[closing + 1 :].split()


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """The process with this pid, or zombie; None if there is none."""
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
    name, fields = split_stat(text)
    if len(fields) < 20:
        return None
    try:
        return Process(
            pid=pid,
            parent=int(fields[1]),
            state=fields[0],
            start_ticks=int(fields[19]),
            name=name,
        )
    except ValueError:
        return None


def find_start_ticks(pid: int, proc: Path = PROC) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    process = read_process(pid, proc)
    return None if process is None else process.start_ticks


def is_alive(pid: int, started: int | None = None, proc: Path = PROC) -> bool:
    """Whether this process still runs. `started`: its start ticks, to detect a reused pid; None
    or 0: unknown, so only the pid is checked. A zombie is not alive."""
    process = read_process(pid, proc)
    if process is None or process.ended:
        return False
    return not started or process.start_ticks == started


def find_uid(pid: int, proc: Path = PROC) -> int | None:
    """The uid of the process's user; root for a process that is not dumpable. None if there is no
    such process."""
    try:
        return os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None


def read_wait_status(pid: int, started: int | None = None, proc: Path = PROC) -> int | None:
    """The status of an ended process that its parent has not waited for, as waitpid(2) would
    return it. None if it still runs, is gone, did not start at `started` (clock ticks), or is not
    accessible: for those the kernel always reports 0."""
    process = read_process(pid, proc)
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
    """The kernel's random id of this boot, a UUID in lower case; None if unknown."""
    try:
        text = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.strip().lower() or None


def list_descendants(pid: int, proc: Path = PROC) -> tuple[Process, ...]:
    """Every process below `pid`, nearest first. One pass over /proc."""
    children: dict[int, list[Process]] = {}
    try:
        entries = [entry.name for entry in proc.iterdir() if entry.name.isdecimal()]
    except OSError:
        return ()
    for entry in entries:
        process = read_process(int(entry), proc)
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [pid]
    for parent in queue:
        for child in sorted(children.pop(parent, ()), key=lambda process: process.pid):
            found.append(child)
            queue.append(child.pid)
    return tuple(found)


class Owner(NamedTuple):
    """The owner of a process. None or empty: unknown."""

    pid: int
    user: str | None = None
    container: str | None = None
    command: tuple[str, ...] = ()


def find_owners(pids: Iterable[int], root: Path = Path("/")) -> tuple[Owner, ...] | None:
    """The owners of the first of these processes, given by host pids; None: this is a container,
    in which host pids mean other processes or none."""
    if not sees_own_pids(root):
        return None
    return tuple(_owner(pid, root / "proc" / str(pid)) for pid in list(pids)[:MOST_PROCESSES])


def find_container(cgroup: str) -> str | None:
    """The id (first 12 digits) or name of the container; None: no container, or our own."""
    for line in cgroup.splitlines():
        path = line.rpartition(":")[2]
        if long := re.findall(_LONG_ID, path):
            return str(long[-1])[:12]
        if named := re.search(_CONTAINER, path):
            return named.group(1)
    return None


@lru_cache(maxsize=256)
def name_user(uid: int) -> str:
    """The user's name; the uid itself if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner(pid: int, folder: Path) -> Owner:
    try:
        who = name_user(folder.stat().st_uid)
    except OSError:
        return Owner(pid)
    words = _read_text(folder / "cmdline").rstrip("\0").split("\0")
    return Owner(
        pid, who, find_container(_read_text(folder / "cgroup")), tuple(filter(None, words))
    )


def _read_text(path: Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(MOST_BYTES) or b"").decode("utf-8", "replace")
    except OSError:
        return ""  # it ended meanwhile, or is not readable
