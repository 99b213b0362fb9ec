"""Creates the file of a black box and says who its process is."""

from __future__ import annotations

import errno
import os
import time
from typing import Any, NamedTuple

from . import layout

NAMES_TRIED = 100
"""Boxes of one process number and attempt on one host: numbers come round in long runs."""


class Sizes(NamedTuple):
    """How many records a box holds, and the first window of its history in ns."""

    steps: int = layout.STEP_CAPACITY
    events: int = layout.EVENT_CAPACITY
    history: int = layout.HISTORY_CAPACITY
    window_ns: int = layout.FIRST_HISTORY_WINDOW_NS


STANDARD = Sizes()


def head(sizes: Sizes) -> tuple[Any, ...]:
    """The fields of the identity block that never change: all before the rank."""
    at = layout.areas()
    before = time.monotonic_ns()
    wall = time.time_ns()
    between = (before + time.monotonic_ns()) // 2
    return (
        layout.MAGIC,
        layout.VERSION_MAJOR,
        layout.VERSION_MINOR,
        layout.BYTE_ORDER_MARK,
        layout.HEADER_SIZE,
        at["birth"],
        layout.BIRTH_SLOT_SIZE,
        at["strings"],
        layout.STRINGS_SIZE,
        at["steps"],
        sizes.steps,
        at["events"],
        sizes.events,
        at["history"],
        sizes.history,
        at["words"],
        layout.WORDS_SIZE,
        os.getpid(),
        os.getppid(),
        _start_ticks(),
        wall,
        between,
        _boot_id(),
    )


def create(folder: str, name: str) -> tuple[int, str, str]:
    """A new temporary file and the name that it may take, which nobody else takes meanwhile."""
    for turn in range(NAMES_TRIED):
        stem = f"{name}.{turn}" if turn else name
        temporary = os.path.join(folder, f".{stem}.tmp")
        path = os.path.join(folder, stem + layout.BOX_SUFFIX)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(temporary, flags, 0o600)
        except FileExistsError:
            continue
        if not os.path.lexists(path):
            return fd, temporary, path
        os.close(fd)
        os.unlink(temporary)
    raise FileExistsError(errno.EEXIST, "too many boxes of this name", os.path.join(folder, name))


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
