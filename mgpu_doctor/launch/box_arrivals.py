"""Shows at once that a process has become a rank: its black box appears in the folder of boxes.

Processes are otherwise found once per second. A forked rank that fails in its first steps can have
come and gone by then, and how it ended would never be known (a crash would look like a kill).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

IN_MOVED_TO, IN_CREATE, IN_ONLYDIR = 0x80, 0x100, 0x0100_0000
"""inotify(7). A box gets its name by a rename; other writers may create theirs in place."""
_MOST_BYTES = 1 << 16


class BoxArrivals:
    """Notices new files in a folder by inotify(7); never blocks.

    `descriptor`: readable once files have arrived; None where the kernel has no watch to give (the
    user's limit is reached, or there is no inotify): then nothing is noticed."""

    def __init__(self, folder: Path | None) -> None:
        self.descriptor = None if folder is None else _watch(folder)

    def take(self) -> bool:
        """Whether files have arrived since the last call."""
        if self.descriptor is None:
            return False
        try:
            return bool(os.read(self.descriptor, _MOST_BYTES))
        except OSError:
            return False

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _watch(folder: Path) -> int | None:
    """A descriptor that becomes readable when a file arrives in the folder; None: not possible."""
    try:
        libc = ctypes.CDLL(None)
        start, add = libc.inotify_init1, libc.inotify_add_watch
    except (OSError, AttributeError):
        return None
    descriptor = int(start(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        return None
    if add(descriptor, os.fsencode(folder), IN_CREATE | IN_MOVED_TO | IN_ONLYDIR) < 0:
        os.close(descriptor)
        return None
    return descriptor
