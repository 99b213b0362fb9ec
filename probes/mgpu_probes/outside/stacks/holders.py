"""Who holds the other end of a pipe, or the lock that is waited for.

From /proc alone: looking at the file itself could hang where its file system does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.processes import PROC

PIPE = "pipe:["
MOST_PROCESSES = 4_096
MOST_DESCRIPTORS = 65_536
"""In all; each costs about 2 µs."""
MOST_TOLD = 3


class Holders:
    """As of one moment: what is looked up is looked up once. For one thread."""

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc

    def of_pipe(self, target: str, pid: int, *, writing: bool) -> tuple[str, ...]:
        """The processes that can write into the pipe, or read from it, for the one that waits.
        `target`: `pipe:[INODE]`."""
        wanted = stat.S_IWUSR if writing else stat.S_IRUSR
        ends = self._pipes.get(target, ())
        found = dict.fromkeys(other for other, mode in ends if mode & wanted)
        return tuple(self.named(other, pid) for other in [*found][:MOST_TOLD])

    def of_lock(self, pid: int, descriptor: int) -> tuple[str, ...]:
        """The processes that hold a lock on the file that a descriptor of the process leads to."""
        file = self._file(pid, descriptor)
        if file is None:
            return ()
        found: dict[int, None] = {}
        for words in map(str.split, _text(self.proc / "locks").split("\n")):
            # NUMBER: KIND ADVISORY WRITE PID DEVICE:INODE START END (proc_locks(5)); one that
            # waits has an arrow before KIND.
            if len(words) >= 6 and words[5] == file and words[4].isdigit() and int(words[4]) > 0:
                found[int(words[4])] = None
        return tuple(self.named(other, pid) for other in [*found][:MOST_TOLD])

    def named(self, pid: int, itself: int | None = None) -> str:
        """`PID NAME`, the pid alone where there is no such process, or `itself`."""
        if pid == itself:
            return "itself"
        process = processes.read(pid, self.proc)
        return str(pid) if process is None else f"{pid} {process.name}"

    @cached_property
    def _pipes(self) -> dict[str, list[tuple[int, int]]]:
        """Of each pipe, which processes have it open, and for what: the modes of the links that
        stand for their descriptors (proc_pid_fd(5))."""
        found: dict[str, list[tuple[int, int]]] = {}
        left = MOST_DESCRIPTORS
        for pid in self._pids():
            for link in _links(f"{self.proc}/{pid}/fd"):
                left -= 1
                try:
                    target = os.readlink(link)
                    if target.startswith(PIPE):
                        found.setdefault(target, []).append((pid, os.lstat(link).st_mode))
                except OSError:
                    continue  # closed meanwhile
            if left <= 0:
                break
        return found

    def _pids(self) -> list[int]:
        """Those that started last come first."""
        try:
            found = [int(name) for name in os.listdir(self.proc) if name.isdecimal()]
        except OSError:
            return []
        return sorted(found, reverse=True)[:MOST_PROCESSES]

    def _file(self, pid: int, descriptor: int) -> str | None:
        """`MAJOR:MINOR:INODE` as the kernel writes it in its list of locks; None before Linux 5.14,
        which did not tell the inode."""
        lines = _text(self.proc / str(pid) / "fdinfo" / str(descriptor)).split("\n")
        facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        mount, inode = facts.get("mnt_id"), facts.get("ino")
        for words in map(str.split, _text(self.proc / str(pid) / "mountinfo").split("\n")):
            if len(words) > 2 and words[0] == mount and inode:
                major, _, minor = words[2].partition(":")
                if major.isdigit() and minor.isdigit():
                    return f"{int(major):02x}:{int(minor):02x}:{inode}"
        return None


def _links(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from (f"{folder}/{name}" for name in names)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
