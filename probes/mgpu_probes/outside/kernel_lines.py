"""Lines of the kernel's log as they come. Never blocks; for one thread.

Records of /dev/kmsg: the kernel's Documentation/ABI/testing/dev-kmsg. Where it may not be read, the
system logger may have written the same into a file that may.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

KMSG = Path("/dev/kmsg")
LOG_FILES = tuple(map(Path, ("/var/log/kern.log", "/var/log/messages", "/var/log/syslog")))
"""Where rsyslog and syslog-ng write the kernel's messages on Debian, Red Hat and their like."""
MOST_RECORDS = 20_000
"""Read at once; a busy log must not hold the reader up."""
MOST_BYTES = 1 << 20
"""The same of a file; what a busier one held before is left out."""
_RECORD_BYTES = 8192
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Records:
    """Reads what the kernel logs from now on. `trouble`: why it cannot; None where it can.
    `history`: also what it still remembers."""

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
        """Seconds since boot, by the kernel's own clock, and the first line of each new record."""
        lines: list[tuple[float, str]] = []
        for _ in range(MOST_RECORDS):
            if self._descriptor is None:
                break
            try:
                read = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before we came; the next read goes on after
            except OSError as error:
                self.close()
                self.trouble = f"the kernel's log cannot be read: {error.strerror or error}"
                break
            if not read:
                break
            # The device gives a record a read: one line, then lines of facts that begin with a
            # space.
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
    `OSError` where there is none that may be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._descriptor = _opened(path)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def new(self) -> list[str]:
        """The lines written since the call before."""
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
    """The first of these files that may be read."""
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
