"""Files into which a process of this machine prints, read at their end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

DESCRIPTORS = {"stdout": 1, "stderr": 2}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a standard stream goes. `shared`: other processes that were asked about print there,
    too. `end`: the last bytes where that is a file, else None."""

    name: str
    shared: bool = False
    end: bytes | None = None


def target(pid: int, stream: str, others: Iterable[int], most: int) -> Target | None:
    """Where `stdout` or `stderr` of a living process goes; None: nobody may tell, or it has gone.
    `most`: bytes that are read of a file."""
    try:
        path = _path(pid, stream)
        name = os.readlink(path)
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Target(name)
        # Through the process itself, so that it is the same file in its container, or without name.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            file.seek(max(0, os.fstat(descriptor).st_size - most))
            end = file.read(most)
    except OSError:
        return None
    identity = status.st_dev, status.st_ino
    return Target(name, any(_identity(one, stream) == identity for one in others), end)


def _identity(pid: int, stream: str) -> tuple[int, int] | None:
    try:
        status = os.stat(_path(pid, stream))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _path(pid: int, stream: str) -> str:
    return f"/proc/{pid}/fd/{DESCRIPTORS[stream]}"
