"""The kernel's log: its new lines, and the processes that its OOM killer killed. Never blocks.

Records of /dev/kmsg: the kernel's Documentation/ABI/testing/dev-kmsg. If it cannot be read,
the system logger may have written the same lines to a readable file. Lines of kills:
mm/oom_kill.c of Linux 3.10 to 6.18. For one thread."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

KMSG = Path("/dev/kmsg")
LOG_FILES = tuple(map(Path, ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")))
"""Where rsyslog and syslog-ng write the kernel's messages on Debian, Red Hat and others."""
MOST_RECORDS = 20_000
"""Most records of one read, so that a busy log does not block the reader."""
MOST_BYTES = 1 << 20
"""Most bytes of one read of a file; older ones are skipped."""
_RECORD_BYTES = 8192
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
MOST_KILLS = 64
_LONGEST = 300

# Compiled at the first line of a kill: few machines ever have one.
_CHOSEN = (
    r"^oom-kill:constraint=(?P<constraint>[A-Z_]{1,40}),.{0,2000}?"
    r",(?:oom_memcg=(?P<limited>[^,]*),)?task_memcg=(?P<group>[^,]*),"
    r"task=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,9}),"
)
_KILLED = (
    r"^(?:.{0,60}: )?[Kk]illed process (?P<pid>\d{1,9}) \((?P<name>.{0,64}?)\),? "
    r"(?:UID \d{1,10},? )?total-vm:\d{1,20}kB(?P<sizes>.{0,400})"
)
_RESIDENT = r"(?:anon|file|shmem)-rss:(\d{1,15})kB"


class Records:
    """Reads new records of the kernel's log. `trouble`: why it cannot, or None. `history`: also
    the records that the kernel still holds."""

    def __init__(self, path: Path = KMSG, *, history: bool = False) -> None:
        self.trouble: str | None = None
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, _FLAGS)
            if not history:
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.close()
            self.trouble = f"{path} cannot be read: {error.strerror or error}"

    def new(self) -> list[tuple[float, str]]:
        """New records: seconds since boot by the kernel's clock, and the first line."""
        lines: list[tuple[float, str]] = []
        for _ in range(MOST_RECORDS):
            if self._descriptor is None:
                break
            try:
                read = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError as error:
                self.close()
                self.trouble = f"the kernel's log cannot be read: {error.strerror or error}"
                break
            if not read:
                break
            # A read returns one record: one line, then lines of facts that begin with a space.
            for record in read.decode("utf-8", "replace").split("\n"):
                if record and not record.startswith(" "):
                    lines.append(_taken_apart(record))
        return lines

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class LogFile:
    """Follows a file of the system logger from its end on, also when it is rotated. Raises
    `OSError` if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._descriptor = _opened(path)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def new(self) -> list[str]:
        """The lines written since the previous call."""
        whole = self._rest + self._read()
        try:
            if self._is_rotated():
                follower = _opened(self._path)
                os.close(self._descriptor)
                self._descriptor = follower
                whole += self._read()
        except OSError:
            pass  # between two files: the next call sees the new one
        *lines, rest = whole.split(b"\n")
        self._rest = rest[-_RECORD_BYTES:]
        return [line.decode("utf-8", "replace") for line in lines]

    def close(self) -> None:
        os.close(self._descriptor)

    def _read(self) -> bytes:
        size, at = os.fstat(self._descriptor).st_size, os.lseek(self._descriptor, 0, os.SEEK_CUR)
        os.lseek(self._descriptor, max(at, size - MOST_BYTES) if at <= size else 0, os.SEEK_SET)
        return os.read(self._descriptor, MOST_BYTES)

    def _is_rotated(self) -> bool:
        ours, there = os.fstat(self._descriptor), os.stat(self._path, follow_symlinks=False)
        return (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)


def first_readable(paths: Iterable[Path] = LOG_FILES) -> LogFile | None:
    """The first readable one of these files; None if there is none."""
    for path in paths:
        try:
            return LogFile(path)
        except OSError:
            continue
    return None


def _opened(path: Path) -> int:
    descriptor = os.open(path, _FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor


def _taken_apart(record: str) -> tuple[float, str]:
    head, _, text = record.partition(";")
    stamp = (*head.split(","), "", "", "")[2]  # priority, sequence, microseconds, flags
    seconds = int(stamp) / 1e6 if stamp.isascii() and stamp.isdigit() and len(stamp) < 20 else 0.0
    return seconds, text


class Kill(NamedTuple):
    """A process that the OOM killer killed. `pid`: in the kernel's numbering, which differs inside
    a container. `limited`: the group whose limit was reached; None: no group's, or not reported
    (before Linux 4.19)."""

    pid: int
    since_boot: float
    """Seconds since boot by the kernel's clock, which stops while the machine sleeps."""
    name: str
    resident: int | None
    """Bytes: anonymous, of mapped files, and shared."""
    group: str | None
    limited: str | None
    constraint: str | None
    """`CONSTRAINT_MEMCG`: a group's limit; `CONSTRAINT_NONE`: the machine ran out of memory."""


class KernelLog:
    """Reads new kills from the kernel's log. `trouble`: why it cannot, or None. Never blocks.
    For one thread. `history`: also kills that the log still holds."""

    def __init__(self, path: Path = KMSG, *, history: bool = False) -> None:
        self._records = Records(path, history=history)
        self._chosen: dict[int, re.Match[str]] = {}

    @property
    def trouble(self) -> str | None:
        return self._records.trouble

    def new_kills(self) -> list[Kill]:
        """Kills logged since the last call, at most the latest MOST_KILLS."""
        kills: list[Kill] = []
        for since_boot, text in self._records.new():
            if chosen := re.match(_CHOSEN, text):
                self._chosen = {int(chosen["pid"]): chosen}
            elif killed := re.match(_KILLED, text):
                kills.append(self._kill(killed, since_boot))
        return kills[-MOST_KILLS:]

    def close(self) -> None:
        self._records.close()

    def _kill(self, killed: re.Match[str], since_boot: float) -> Kill:
        pid = int(killed["pid"])
        chosen = self._chosen.pop(pid, None)
        sizes = re.findall(_RESIDENT, killed["sizes"])
        return Kill(
            pid=pid,
            since_boot=since_boot,
            name=killed["name"],
            resident=1024 * sum(map(int, sizes)) if sizes else None,
            group=chosen["group"][:_LONGEST] or None if chosen else None,
            limited=(chosen["limited"] or "")[:_LONGEST] or None if chosen else None,
            constraint=chosen["constraint"] if chosen else None,
        )


def sees_own_pids(root: Path = Path("/")) -> bool:
    """Whether the kernel's pids are also ours: False inside a container's pid namespace."""
    try:
        # PROC_PID_INIT_INO of the kernel's proc_ns.h: the first pid namespace is always this one.
        return os.readlink(root / "proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False
