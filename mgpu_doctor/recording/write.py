"""Writes a recording: everything is 0600 in 0700 folders, complete or absent, and bounded."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from mgpu_doctor.recording.layout import INFO

MAX_LINES_BYTES = 4 << 20
_MAX_LINE_BYTES = 256 << 10


class OccupiedError(ValueError):
    """The folder contains something that must not be overwritten."""


def create(folder: Path) -> None:
    """Makes `folder` a recording that belongs to this call: if two runs name the same folder, one
    is refused. Raises what `make_empty` raises."""
    make_empty(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(folder / INFO, flags, 0o600))
    except FileExistsError:
        raise OccupiedError(f"{folder} already contains a recording.") from None


def make_empty(folder: Path) -> None:
    """Makes `folder` an empty private folder.

    Raises `OccupiedError` if it is not a folder, not empty, or another user's, and `OSError` if it
    cannot be made.
    """
    if folder.exists():
        if not folder.is_dir():
            raise OccupiedError(f"{folder} is not a folder.")
        if (folder / INFO).exists():
            raise OccupiedError(f"{folder} already contains a recording.")
        if any(folder.iterdir()):
            raise OccupiedError(f"{folder} is not empty.")
        if folder.stat().st_uid != os.geteuid():
            raise OccupiedError(f"{folder} belongs to another user.")
        folder.chmod(0o700)
    else:
        private_folder(folder)


def private_folder(folder: Path) -> Path:
    """Makes `folder` (0700) and its missing parents. Raises `OSError`."""
    for missing in reversed([folder, *folder.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Writes `path` (0600) so that a reader sees the old or the new content, never a part.

    Raises `OSError`, and then leaves no temporary file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a JSON object with `write_whole`."""
    import json  # not needed where nothing is written

    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


class Lines:
    """A bounded file of JSON objects, one per line, appended to.

    `samples`: a file that would outgrow `limit` bytes drops every second line, and then accepts
    only every second object, so that it covers the whole run evenly. Without it, a full file
    accepts no more. Samples that another process has begun to write count. `append` raises
    `OSError`."""

    def __init__(self, path: Path, limit: int = MAX_LINES_BYTES, *, samples: bool) -> None:
        self.path = path
        self.limit = limit
        self.samples = samples
        self._size = None if samples else 0
        self._stride = 1
        self._offered = 0

    @property
    def stride(self) -> int:
        """One of this many objects is written; doubles when the file is thinned."""
        return self._stride

    def append(self, content: Mapping[str, object]) -> None:
        self.append_made(lambda: content)

    def append_made(self, make: Callable[[], Mapping[str, object]]) -> None:
        """Appends an object that depends on the ones written before: it is made only if it is
        written."""
        self._offered += 1
        if (self._offered - 1) % self._stride:
            return
        import json  # not needed where nothing is written

        line = json.dumps(make(), separators=(",", ":")).encode() + b"\n"
        if len(line) > _MAX_LINE_BYTES:
            raise OSError(errno.EMSGSIZE, f"a line of {len(line)} bytes is too long")
        size = _find_size(self.path) if self._size is None else self._size
        if size + len(line) > self.limit:
            if not self.samples:
                raise OSError(errno.EFBIG, f"{self.path.name} is full")
            self._size = size = self._thin()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            _write_all_or_nothing(descriptor, line)
        finally:
            os.close(descriptor)
        self._size = size + len(line)

    def _thin(self) -> int:
        """Drops every second line. Returns how many bytes are left."""
        kept = b"".join(self.path.read_bytes().splitlines(keepends=True)[::2])
        write_whole(self.path, kept)
        self._stride *= 2
        return len(kept)


def _find_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _write_all_or_nothing(descriptor: int, line: bytes) -> None:
    """Writes all or nothing: a full disk may take half a line, which is cut off again, so that the
    next one stays readable."""
    before = os.fstat(descriptor).st_size
    written = os.write(descriptor, line)
    if written != len(line):
        os.ftruncate(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
