"""The folder of a session of trials, which is removed when the session ends.

A session that is killed cannot remove it. So each process that uses the folder holds a shared lock
on it, which the kernel drops when the process ends: the observer of the running trial, else the
next session removes a folder on which there is no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mgpu_doctor.launch.box_storage import NoLocalStorageError, can_map_boxes, local_places
from mgpu_doctor.recording.home import home
from mgpu_doctor.recording.write import private_folder

PREFIX = "mgpu-doctor-trials-"


@contextmanager
def trial_folder() -> Iterator[Path]:
    """A private folder for the trials of a session, which is removed afterwards, as are those that
    killed sessions have left. It is where black boxes can be mapped, so that each trial keeps its
    own in its recording. Raises OSError."""
    places = (private_folder(home()), *local_places(os.environ))
    for place in places:
        _remove_abandoned(place)
    parent = next(filter(can_map_boxes, places), None)
    if parent is None:
        raise NoLocalStorageError(errno.EOPNOTSUPP, "no local file system for black boxes")
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def hold(folder: Path) -> int:
    """Keeps a folder from being removed as abandoned until the returned descriptor is closed, or
    this process ends. Raises OSError."""
    lock = _open(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError:
        os.close(lock)
        raise
    return lock


def remove_if_abandoned(folder: Path) -> None:
    """Removes a session's folder with all that is in it, unless a process holds it, or it belongs
    to another user."""
    with suppress(OSError):
        lock = _open(folder)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # another session may remove it before it is held
            lock = hold(folder)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _remove_abandoned(place: Path) -> None:
    with suppress(OSError):
        for name in os.listdir(place):
            if name.startswith(PREFIX):
                remove_if_abandoned(place / name)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
