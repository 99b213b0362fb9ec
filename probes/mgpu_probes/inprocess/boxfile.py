"""Creates the file of a black box and fills in the fields that identify its process."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import Any, NamedTuple

from . import filesystem, layout

NAMES_TRIED = 100
"""Boxes of the same pid and attempt on one host: pids are reused in long runs."""


class Sizes(NamedTuple):
    """How many records a box holds, and the first window of its history in ns."""

    steps: int = layout.STEP_CAPACITY
    events: int = layout.EVENT_CAPACITY
    history: int = layout.HISTORY_CAPACITY
    window_ns: int = layout.FIRST_HISTORY_WINDOW_NS
    device: int = layout.DEVICE_CAPACITY


STANDARD = Sizes()


def head(sizes: Sizes) -> tuple[Any, ...]:
    """The fields of the box's header that never change: all before the rank."""
    offsets = layout.areas()
    earlier = time.monotonic_ns()
    wall = time.time_ns()
    between = (earlier + time.monotonic_ns()) // 2
    return (
        layout.MAGIC,
        layout.VERSION_MAJOR,
        layout.VERSION_MINOR,
        layout.BYTE_ORDER_MARK,
        layout.HEADER_SIZE,
        offsets["birth"],
        layout.BIRTH_SLOT_SIZE,
        offsets["strings"],
        layout.STRINGS_SIZE,
        offsets["steps"],
        sizes.steps,
        offsets["events"],
        sizes.events,
        offsets["history"],
        sizes.history,
        offsets["words"],
        layout.WORDS_SIZE,
        os.getpid(),
        os.getppid(),
        _start_ticks(),
        wall,
        between,
        _boot_id(),
    )


def open_folder(path: str) -> int:
    """Opens the folder at `path` and returns its descriptor. Missing folders are made (mode 0700).

    Raises OSError, also if the folder is a link, belongs to another user, or is writable by others:
    they could truncate a box, and the next store into it would kill this process."""
    missing = []
    above = os.path.abspath(path)
    while not os.path.lexists(above):
        missing.append(above)
        above = os.path.dirname(above)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another rank was faster
            os.mkdir(folder, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "others can write in the folder of the boxes", path)
    return descriptor


def create(folder: int, name: str) -> tuple[int, str, str]:
    """Creates a temporary file in an open folder. Returns its descriptor, its name, and the final
    name that is reserved for it by the temporary one. Raises OSError."""
    for turn in range(NAMES_TRIED):
        stem = f"{name}.{turn}" if turn else name
        temporary, final = f".{stem}.tmp", stem + layout.BOX_SUFFIX
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(temporary, flags, 0o600, dir_fd=folder)
        except FileExistsError:
            continue
        try:
            os.stat(final, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return file, temporary, final
        os.close(file)
        os.unlink(temporary, dir_fd=folder)
    raise FileExistsError(errno.EEXIST, "too many boxes of this name", name)


def reserve(file: int, size: int) -> None:
    """Allocates `size` bytes for the empty file, so that no store into its mapping can fail.

    Raises OSError if there is no space, or if the file system does not keep what it reserves."""
    refused = filesystem.mapping_refused(file, size)
    if refused is not None:
        raise refused
    os.posix_fallocate(file, 0, size)  # never sparse: a store into a hole may find no space


def _start_ticks() -> int:
    """When this process started, in clock ticks since boot; 0 where /proc does not tell."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _boot_id() -> bytes:
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as boot:
            return bytes.fromhex(boot.read().strip().replace(b"-", b"").decode())
    except (OSError, ValueError):
        return bytes(16)
