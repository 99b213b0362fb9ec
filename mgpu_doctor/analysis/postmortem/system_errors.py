"""What the operating system refused a process, by the exception that it raised."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass

from mgpu_doctor.case.model import Error

_NUMBER = re.compile(r"\[Errno (\d{1,3})\]")
_WORDS = {
    "no space left on device": errno.ENOSPC,
    "disk quota exceeded": errno.EDQUOT,
    "file too large": errno.EFBIG,
    "too many open files in system": errno.ENFILE,
    "too many open files": errno.EMFILE,
    # multiprocessing's way to say that the file descriptors in a message got lost: EMFILE
    "received 0 items of ancdata": errno.EMFILE,
    "read-only file system": errno.EROFS,
    "permission denied": errno.EACCES,
}
"""strerror(3) in lower case, as C++ code prints it too. The first that fits counts."""
_TYPES = {"PermissionError": errno.EACCES}
_FILE = re.compile(
    r"(?:\[Errno \d{1,3}\] [^:']{1,100}: |file )['<\"](?P<file>[^'>\"]{1,500})['>\"]"
)
_SEMAPHORE = "_multiprocessing.SemLock("
"""Python's locks and queues are files in /dev/shm; the error itself names none."""
_SHARED = re.compile(r"/torch_\d|/dev/shm/|shared memory|\bshm\b")


@dataclass(frozen=True, slots=True)
class SystemRefusal:
    """`shared`: it was about shared memory. `file`: the one that the text names."""

    number: int
    file: str | None
    shared: bool


def parse_system_error(error: Error | None) -> SystemRefusal | None:
    """The refusal that an exception tells of; None: of none that is known here."""
    if error is None:
        return None
    number = _number(error)
    if number is None:
        return None
    file = _FILE.search(error.message)
    shared = bool(_SHARED.search(error.message)) or _SEMAPHORE in error.traceback
    return SystemRefusal(number, file["file"] if file else None, shared)


def _number(error: Error) -> int | None:
    if "inotify" in error.message:
        return None  # its limit of watches has the number of a full disk
    if found := _NUMBER.search(error.message):
        return int(found[1])
    message = error.message.lower()
    told = next((number for words, number in _WORDS.items() if words in message), None)
    return told or _TYPES.get(error.type.rpartition(".")[2])
