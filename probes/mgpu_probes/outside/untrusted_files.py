"""Opens untrusted files, and limits what reading them may cost by one budget.

Confinement: no path below a folder that the user named leads out of it. Paths are opened folder
by folder from an open descriptor, no link is followed, and only regular files are opened, without
blocking.

Budget: a file may be small on disk and large in memory (a gzip file, a pickle whose lists are
shared, JSON of empty lists). So every byte on disk adds Python objects and time to the budget of
the command, on top of a fixed amount. Reading that exceeds it is refused with a sentence. A file
with several names adds to it once."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

FIRST_OBJECTS = 1_000_000
"""Python objects that are allowed whatever the files' size: about 100 MB."""
BYTES_AN_OBJECT = 4
"""Bytes on disk that add one object. JSON from torch and the doctor has 6 to 10 bytes per
value."""
TEXT_AN_OBJECT = 64
"""Bytes of text that cost as much as an object."""
FIRST_SECONDS = 5.0
BYTES_A_SECOND = 1 << 20
"""Bytes on disk that add one second: the slowest reader reads 5 MB/s (benchmarks/traces.py)."""
UNPACKED = 32
"""A compressed file counts as what it unpacks to, at most this many times its size: text shrinks to
a twentieth (benchmarks/logs.py); a file that shrinks more holds little information."""
UNPACKED_BYTES_A_SECOND = 2 << 20
"""Unpacked bytes that add one second. They add less than bytes on disk: a quarter of a megabyte
must not take longer than ten seconds."""
MOST_AT_ONCE = 24 << 20
"""Bytes that a small file may unpack to if all of it is held in memory; `UNPACKED` limits larger
files."""
LEAST_DISK = 1 << 16
"""Bytes that every file counts for at least: file systems store small files without blocks."""
MOST_ENTRIES = 1 << 17
"""Most entries of one folder."""


class OverBudgetError(OSError):
    """Reading takes more memory or time than the files' size on disk justifies."""


class OpenFolders:
    """Opens names in folders. Those on the way to the last one stay open: files that lie beside
    each other are usually opened one after the other."""

    def __init__(self) -> None:
        self._root: str | os.PathLike[str] | None = None
        self._names: list[str] = []
        self._descriptors: list[int] = []
        """Of the root, then of the folders with these names, each in the one before."""
        self._lock = threading.Lock()
        self._are_kept = True

    def open(
        self, root: str | os.PathLike[str], folders: Sequence[str], name: str, flags: int
    ) -> int:
        """A descriptor of `name` in the folder `root`/`folders`, through no link. Raises
        OSError."""
        with self._lock:
            try:
                return os.open(name, flags | _PLAIN, dir_fd=self._folder(root, folders))
            finally:
                if not self._are_kept:
                    self._leave()

    def close(self) -> None:
        """Closes all folders. From now on, none stays open."""
        with self._lock:
            self._are_kept = False
            self._leave()

    def _folder(self, root: str | os.PathLike[str], names: Sequence[str]) -> int:
        if root != self._root:
            self._leave()
            self._descriptors.append(os.open(root, _STEP & ~os.O_NOFOLLOW))
            self._root = root
        if names != self._names:
            both = zip(names, self._names, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
            self._close_below(same)
            for name in names[same:]:
                self._descriptors.append(os.open(name, _STEP, dir_fd=self._descriptors[-1]))
                self._names.append(name)
        return self._descriptors[-1]

    def _leave(self) -> None:
        self._close_below(-1)
        self._root = None

    def _close_below(self, depth: int) -> None:
        while len(self._descriptors) > depth + 1:
            os.close(self._descriptors.pop())
        del self._names[max(0, depth) :]


class Budget:
    """What reading may still cost. `deadline`: in seconds of `time.thread_time`, because waiting
    for a slow disk or a running job is no attack."""

    def __init__(self, objects: float = FIRST_OBJECTS, deadline: float | None = None) -> None:
        self.objects = objects
        self.deadline = time.thread_time() + FIRST_SECONDS if deadline is None else deadline
        self.folders = OpenFolders()
        """They stay open as long as the command reads."""
        self._known: set[tuple[int, int]] = set()

    def admit(self, status: os.stat_result) -> int:
        """Adds an opened file to the budget; returns its bytes on disk."""
        disk = min(status.st_size, max(512 * status.st_blocks, LEAST_DISK))
        identity = status.st_dev, status.st_ino
        if identity not in self._known:
            self._known.add(identity)
            self.earn(disk)
        return disk

    def earn(self, count: int, bytes_a_second: int = BYTES_A_SECOND) -> None:
        """Adds `count` bytes to the budget."""
        self.objects += count / BYTES_AN_OBJECT
        self.deadline += count / bytes_a_second

    def take(self, objects: float) -> None:
        """Charges `objects` Python objects. Raises OverBudgetError."""
        if objects > self.objects:
            raise OverBudgetError(0, "it unpacks to far more than its size on disk justifies")
        self.objects -= objects
        self.check_time()

    def take_json(self, raw: bytes) -> None:
        """Charges the most values that this JSON text can hold. Raises OverBudgetError."""
        self.take(len(raw) - len(raw.translate(None, b",:[{")) + 1)

    def take_text(self, raw: bytes) -> None:
        """Charges the lines of this text. Raises OverBudgetError."""
        self.take(raw.count(b"\n") + len(raw) / TEXT_AN_OBJECT)

    def unpacked(
        self, disk: int, before: int, count: int, bytes_a_second: int = UNPACKED_BYTES_A_SECOND
    ) -> None:
        """Adds `count` more bytes that a file of `disk` bytes unpacked to, after `before` bytes."""
        most = UNPACKED * disk
        more = max(0, min(before + count, most) - max(disk, min(before, most)))
        self.earn(more, bytes_a_second)
        self.check_time()

    def check_time(self) -> None:
        """Raises OverBudgetError if the time is over."""
        if time.thread_time() > self.deadline:
            raise OverBudgetError(0, "it takes far longer to read than its size on disk justifies")


_CURRENT: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def within_budget() -> Iterator[Budget]:
    """The budget of the running command, or a new one if there is none. Each reading process has
    its own, and each thread that did not get the context of another one."""
    known = _CURRENT.get()
    if known is not None:
        yield known
        return
    budget = Budget()
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)
        budget.folders.close()


def open_named(path: str | os.PathLike[str]) -> int:
    """A descriptor of the regular file that the user named, through links too. Raises OSError."""
    return _checked(os.open(path, _FILE), path)


def open_below(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """A descriptor of the regular file `path`, which must lie below the folder `root`, through no
    link. Raises OSError."""
    return _checked(open_any_below(root, path, _FILE), path)


def open_any_below(root: str | os.PathLike[str], path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of anything below `root`, opened with other flags. Raises OSError."""
    *folders, name = _parts(root, path) or (".",)
    with within_budget() as budget:
        return budget.folders.open(root, folders, name, flags)


class Entry(NamedTuple):
    """An entry of a folder. Links, pipes and the like are neither file nor folder."""

    name: str
    path: Path
    is_file: bool
    is_folder: bool
    inode: int


def entries_below(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> list[Entry]:
    """The entries of the folder `path`, which is `root` or below it through no link, sorted by
    name. Empty if it cannot be read."""
    place = Path(path)
    try:
        folder = open_any_below(root, path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(folder) as listed:
            found = [
                Entry(
                    one.name,
                    place / one.name,
                    is_file=one.is_file(follow_symlinks=False),
                    is_folder=one.is_dir(follow_symlinks=False),
                    inode=one.inode(),
                )
                for one, _ in zip(listed, range(MOST_ENTRIES), strict=False)
            ]
    except OSError:
        return []
    finally:
        os.close(folder)
    return sorted(found, key=lambda entry: entry.name)


_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_DIRECTORY | _PLAIN


def _parts(root: str | os.PathLike[str], path: str | os.PathLike[str]) -> tuple[str, ...]:
    above, whole = _all_parts(root), _all_parts(path)
    parts = whole[len(above) :]
    if whole[: len(above)] != above or ".." in parts:
        raise OSError(0, f"it does not lie in {root}")
    return parts


def _all_parts(path: str | os.PathLike[str]) -> tuple[str, ...]:
    return path.parts if isinstance(path, Path) else Path(path).parts


def _checked(descriptor: int, path: str | os.PathLike[str]) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file", os.fspath(path))
    with within_budget() as budget:
        budget.admit(status)
    return descriptor
