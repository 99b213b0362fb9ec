"""The folder of a recording's live black boxes, where it must lie outside of the recording.

The recording then names that folder. A recording may come from a stranger, so its word is not
enough: the folder is read only if it belongs to this user alone and holds the key that the
recording holds. Nobody else can know the key of a folder that they cannot enter.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

PREFIX = "mgpu-doctor-boxes-"
KEY_FILE = "key"
_KEY_BYTES = 16
_LONGEST = 200


def make_outside(place: Path) -> tuple[Path, str]:
    """Makes a private folder in `place`: its path and its key. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    key = os.urandom(_KEY_BYTES).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(folder / KEY_FILE, flags, 0o600), "w", encoding="ascii") as file:
        file.write(key)
    return folder, key


def belongs(folder: str | None, key: str | None) -> bool:
    """Whether `folder` is the live folder of the recording that gives this key."""
    if not folder or not key or "\0" in folder or len(key) != 2 * _KEY_BYTES:
        return False
    if not os.path.isabs(folder) or not os.path.basename(folder).startswith(PREFIX):
        return False
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(place)
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return private and _key_in(place) == key.encode("utf-8", "replace")
    finally:
        os.close(place)


def _key_in(folder: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(KEY_FILE, flags, dir_fd=folder), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            return file.read(_LONGEST)
    except OSError:
        return b""
