"""Where live black boxes can be: they are memory-mapped, which network file systems do badly."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mgpu_doctor.recording import layout
from mgpu_doctor.recording.write import private_folder

# Prefixes of file-system types in /proc/self/mountinfo whose pages another host may change.
_NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "fuse.ceph",
    "fuse.gluster", "fuse.juicefs", "fuse.s3", "fuse.rclone", "fuse.weka", "wekafs", "glusterfs",
    "9p", "afs", "orangefs", "pvfs2", "ocfs2", "gfs2", "panfs", "virtiofs",
)  # fmt: skip


def boxes_folder(recording: Path, host: str) -> tuple[Path, bool]:
    """The folder (made, 0700) for the live boxes, and whether it is outside of the recording.

    Raises `OSError`."""
    inside = private_folder(layout.boxes(recording, host))
    if not on_network(inside):
        return inside, False
    for place in local_places(os.environ):
        if place.is_dir() and not on_network(place):
            return Path(tempfile.mkdtemp(prefix="mgpu-doctor-boxes-", dir=place)), True
    return inside, False


def local_places(environment: Mapping[str, str]) -> list[Path]:
    """Where node-local folders are, best first."""
    named = (environment.get("SLURM_TMPDIR"), environment.get("TMPDIR"), "/tmp")
    return [Path(name) for name in named if name]


def on_network(folder: Path, mounts: str | None = None) -> bool:
    """Whether `folder` lies on a network file system. `mounts`: text of mountinfo (proc(5));
    None: this process's own."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return False
    kind = _file_system(os.path.realpath(folder), mounts)
    return kind.startswith(_NETWORK)


def _file_system(path: str, mounts: str) -> str:
    """The type of the file system mounted nearest above `path`; of several at one place the last
    one mounted is what one sees."""
    nearest, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, types = left.split(" "), right.split(" ")
        if len(fields) < 5 or not types[0]:
            continue
        point = _unescaped(fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(nearest):
            nearest, kind = point, types[0]
    return kind


def _unescaped(text: str) -> str:
    for escape, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(escape, character)
    return text
