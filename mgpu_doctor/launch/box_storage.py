"""Where live black boxes are stored, and how they are copied into the recording.

A box is mapped into its rank and writes to it must never fail, so no network file system is used.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.inprocess.filesystem import file_system, keeps_reserved_space
from mgpu_probes.inprocess.layout import BOX_SUFFIX

from mgpu_doctor.recording import layout
from mgpu_doctor.recording.live_recordings import make_outside
from mgpu_doctor.recording.write import private_folder, write_whole

SHARED_MEMORY = Path("/dev/shm")
MUCH_SHARED_MEMORY = 1 << 30
"""Bytes that must be free there, since data loaders and NCCL use it, too. A choice."""


class NoLocalStorageError(OSError):
    """No known folder is safe for mapping a box."""


@dataclass(frozen=True, slots=True)
class BoxesPlace:
    """The folder of the live boxes. `key`: identifies a folder outside of the recording
    (`recording.live_boxes`); None if it is inside."""

    folder: Path
    key: str | None = None


def boxes_place(
    recording: Path, host: str, environment: Mapping[str, str] = os.environ
) -> BoxesPlace:
    """Makes and returns the folder (mode 0700) for the live boxes. Raises `OSError`, and
    `NoLocalStorageError` if boxes can be mapped neither in the recording nor in any local
    folder."""
    inside = private_folder(layout.boxes(recording, host))
    if can_map_boxes(inside):
        return BoxesPlace(inside)
    for place in local_places(environment):
        if can_map_boxes(place):
            return BoxesPlace(*make_outside(place))
    raise NoLocalStorageError(errno.EOPNOTSUPP, "no local file system for black boxes")


def local_places(environment: Mapping[str, str]) -> Iterator[Path]:
    """Returns candidate folders on this host's own storage, best first."""
    named = (environment.get("SLURM_TMPDIR"), environment.get("TMPDIR"), "/tmp", "/var/tmp")
    yield from (Path(name) for name in named if name)
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return
    if room.f_bavail * room.f_frsize >= MUCH_SHARED_MEMORY:
        yield SHARED_MEMORY


def can_map_boxes(folder: Path) -> bool:
    """Returns whether a rank can safely map a file here; also False if no file can be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as trial:
            return keeps_reserved_space(trial.fileno())
    except OSError:
        return False


def file_system_of(folder: Path) -> str:
    """Returns the type of a folder's file system; `unknown` if it cannot be read."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        return file_system(descriptor) or "unknown"
    finally:
        os.close(descriptor)


LARGEST = 32 << 20
MOST = 1024


def copy(source: Path, target: Path, copied: dict[str, int] | None = None) -> None:
    """Copies every box of `source`. A box may be copied while it is written: its checksums show
    which records are complete. `copied`: name -> checksum of the earlier copies, which this call
    updates; boxes that have not changed since, as those of a hung job, are left out. Raises
    `OSError`."""
    known = {} if copied is None else copied
    boxes = [entry for entry in os.scandir(source) if entry.name.endswith(BOX_SUFFIX)]
    for entry in boxes[:MOST]:
        state = entry.stat(follow_symlinks=False)
        if entry.is_file(follow_symlinks=False) and state.st_size <= LARGEST:
            with open(entry.path, "rb") as box:
                content = box.read(LARGEST)
            checksum = zlib.crc32(content)
            if known.get(entry.name) != checksum:
                write_whole(target / entry.name, content)
                known[entry.name] = checksum


def move(source: Path, target: Path) -> None:
    """Copies every box and removes the private folder `source`. If a copy fails, raises `OSError`
    and removes nothing."""
    copy(source, target)
    shutil.rmtree(source)
