"""A request for traces of running ranks, and the files that came of it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What ends a trace first; None: the default of the tracing method."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TakenTrace:
    """One rank's trace."""

    pid: int
    rank: int | None
    path: Path | None = None
    """The file; None: there is none, and `why` gives the reason."""
    why: str | None = None
    """With a path: why the trace is shorter than requested."""
    host: str | None = None
    """Its host; None: this one."""


def move_trace(
    source: Path, pid: int, rank: int | None, folder: Path, why: str | None = None
) -> TakenTrace:
    """The trace of a rank, moved into `folder` as a private file under the rank's name."""
    name = f"rank{rank}.json" if rank is not None and rank >= 0 else f"pid{pid}.json"
    target = folder / name
    if target.exists():
        target = folder / f"{target.stem}-{pid}.json"
    try:
        _move(source, target)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno == errno.ENOSPC:
            return TakenTrace(pid, rank, None, f"the disk of {folder} is full")
        return TakenTrace(pid, rank, None, f"its trace cannot be read ({error.strerror})")
    return TakenTrace(pid, rank, target, why)


def _move(source: Path, target: Path) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(source, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it is no file of this user")
        os.fchmod(file.fileno(), 0o600)
        try:
            os.rename(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        new = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(new, "wb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
    os.unlink(source)
