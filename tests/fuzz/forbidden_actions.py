"""What a command must not do while it reads foreign files, as Python's audit events tell it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEVER = frozenset(
    {
        "pickle.find_class",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.kill",
        "os.killpg",
        "pty.spawn",
        "socket.connect",
        "socket.sendto",
        "socket.bind",
    }
)
"""Nothing is run, asked or signalled because a file says so."""
_CHANGING = frozenset(
    {
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.mkdir",
        "os.chmod",
        "os.chown",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.utime",
        "shutil.rmtree",
    }
)
_BETWEEN_READERS = ("mgpu_doctor", "mgpu_probes", "numpy", "concurrent")
"""Packages that pickles of the doctor's own name. Foreign ones are read by an unpickler that finds
no class at all, and for which no event is raised."""
MOST_TOLD = 20


def _is_between_readers(event: str, details: tuple[Any, ...]) -> bool:
    """Thousands of boxes, and large traces, are read by several processes: they hand each other
    what they read, in memory or pipes that only they share, and are ended."""
    if event == "pickle.find_class":
        return str(details[0]).partition(".")[0] in _BETWEEN_READERS
    if event != "os.kill":
        return False
    try:
        with open(f"/proc/{details[0]}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


class Deeds:
    """Listens to a process from now on. `allowed`: the folders in which it may write. Reads of
    files outside are the kernel's to tell (`canary`): the events do not say in which open folder a
    name was looked up."""

    def __init__(self, allowed: tuple[Path, ...]) -> None:
        self.seen: list[str] = []
        self._allowed = (*(str(one) for one in allowed), "/dev/null", "/dev/tty")
        self._listens = True

    def stop(self) -> None:
        self._listens = False

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        if not self._listens:
            return
        if event in _NEVER:
            if not _is_between_readers(event, details):
                self._note(event, details)
        elif event in _CHANGING:
            if self._is_outside(details[0]):
                self._note(event, details)
        elif event == "open":
            path, mode, flags = details
            writes = isinstance(flags, int) and flags & _WRITING
            if (writes or (mode and set("wax+") & set(str(mode)))) and self._is_outside(path):
                self._note(event, details)

    def _is_outside(self, path: object) -> bool:
        if isinstance(path, int):
            return False  # it was opened before, and told then
        named = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return os.path.isabs(named) and not os.path.realpath(named).startswith(self._allowed)

    def _note(self, event: str, details: tuple[Any, ...]) -> None:
        if len(self.seen) < MOST_TOLD:
            self.seen.append(f"{event} {details!r}"[:300].replace("\n", " "))
