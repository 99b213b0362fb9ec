"""Whose a process is: its user, its container, its command line. proc(5), cgroups(7)."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mgpu_probes.outside.kernel_log import sees_own_pids

MOST_BYTES = 16 << 10
MOST_PROCESSES = 256
_CONTAINER = re.compile(
    r"/(?:lxc(?:\.payload)?[/.]|machine\.slice/machine-)(\w[\w.-]{0,127}?)(?:\.scope)?(?:/|$)"
)
_LONG_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Owner:
    """None, or no words: not known."""

    pid: int
    user: str | None = None
    container: str | None = None
    command: tuple[str, ...] = ()


def owners(pids: Iterable[int], root: Path = Path("/")) -> tuple[Owner, ...] | None:
    """Of the first of these processes, which are numbered as the host does; None: this is a
    container, in which those numbers are somebody else's or nobody's."""
    if not sees_own_pids(root):
        return None
    return tuple(_owner(pid, root / "proc" / str(pid)) for pid in list(pids)[:MOST_PROCESSES])


def container(cgroup: str) -> str | None:
    """The id (its first 12 digits) or name of the container; None: in none, or in ours."""
    for line in cgroup.splitlines():
        path = line.rpartition(":")[2]
        if long := _LONG_ID.findall(path):
            return str(long[-1])[:12]
        if named := _CONTAINER.search(path):
            return named.group(1)
    return None


@lru_cache(maxsize=256)
def user(uid: int) -> str:
    """Their name; the number itself where they have none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner(pid: int, folder: Path) -> Owner:
    try:
        who = user(folder.stat().st_uid)
    except OSError:
        return Owner(pid)
    words = _read(folder / "cmdline").rstrip("\0").split("\0")
    return Owner(pid, who, container(_read(folder / "cgroup")), tuple(filter(None, words)))


def _read(path: Path) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(MOST_BYTES) or b"").decode("utf-8", "replace")
    except OSError:
        return ""  # it ended meanwhile, or may not be read
