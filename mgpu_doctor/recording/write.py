"""Writing a recording: everything is 0600 in 0700 folders, whole or absent, and bounded."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from mgpu_doctor.recording.layout import INFO

MAX_LINES_BYTES = 4 << 20
_MAX_LINE_BYTES = 256 << 10


class OccupiedError(ValueError):
    """The folder holds something that must not be overwritten."""


def create(folder: Path) -> None:
    """Make `folder` a recording that belongs to this call: of two runs that name the same folder
    one is refused. Raises what `make_empty` raises."""
    make_empty(folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(folder / INFO, flags, 0o600))
    except FileExistsError:
        raise OccupiedError(f"{folder} holds a recording already.") from None


def make_empty(folder: Path) -> None:
    """Make `folder` an empty private folder.

    Raises `OccupiedError` where it is no folder, not empty, or another user's, and `OSError` where
    it cannot be made.
    """
    if folder.exists():
        if not folder.is_dir():
            raise OccupiedError(f"{folder} is not a folder.")
        if (folder / INFO).exists():
            raise OccupiedError(f"{folder} holds a recording already.")
        if any(folder.iterdir()):
            raise OccupiedError(f"{folder} is not empty.")
        if folder.stat().st_uid != os.geteuid():
            raise OccupiedError(f"{folder} belongs to another user.")
        folder.chmod(0o700)
    else:
        private_folder(folder)


def private_folder(folder: Path) -> Path:
    """Make `folder` (0700) and the missing folders above it. Raises `OSError`."""
    for missing in reversed([folder, *folder.parents]):
        if not missing.exists():
            missing.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Write `path` (0600) so that a reader sees the old or the new content, never a part.

    Raises `OSError` and leaves no debris."""
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
    """`write_whole` of a JSON object."""
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())


class Lines:
    """A bounded file of JSON objects, one a line, appended to.

    `samples`: a file that would outgrow `limit` bytes loses every second line, and from then on
    takes every second object only, so that it covers the whole run evenly. Otherwise a full file
    takes no more. `append` raises `OSError`."""

    def __init__(self, path: Path, limit: int = MAX_LINES_BYTES, *, samples: bool) -> None:
        self.path = path
        self.limit = limit
        self.samples = samples
        self._size = 0
        self._stride = 1
        self._offered = 0

    @property
    def stride(self) -> int:
        """Of so many objects offered, one is taken; it doubles when the file is thinned."""
        return self._stride

    def append(self, content: Mapping[str, object]) -> None:
        self.append_made(lambda: content)

    def append_made(self, make: Callable[[], Mapping[str, object]]) -> None:
        """`append`, where the object depends on which ones were taken before: it is made only if
        it is taken."""
        self._offered += 1
        if (self._offered - 1) % self._stride:
            return
        line = json.dumps(make(), separators=(",", ":")).encode() + b"\n"
        if len(line) > _MAX_LINE_BYTES:
            raise OSError(errno.EMSGSIZE, f"a line of {len(line)} bytes is too long")
        if self._size + len(line) > self.limit:
            if not self.samples:
                raise OSError(errno.EFBIG, f"{self.path.name} is full")
            self._thin()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            _write_all_or_nothing(descriptor, line)
        finally:
            os.close(descriptor)
        self._size += len(line)

    def _thin(self) -> None:
        kept = b"".join(self.path.read_bytes().splitlines(keepends=True)[::2])
        write_whole(self.path, kept)
        self._size = len(kept)
        self._stride *= 2


def _write_all_or_nothing(descriptor: int, line: bytes) -> None:
    """A full disk may take half a line: cut it off again, so that the next one stays readable."""
    before = os.fstat(descriptor).st_size
    written = os.write(descriptor, line)
    if written != len(line):
        os.ftruncate(descriptor, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
