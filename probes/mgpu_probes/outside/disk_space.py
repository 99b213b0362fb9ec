"""Free space where a job writes: /dev/shm, its folder, the temporary folder, its open files.

statvfs(3) may hang on a network file system that does not respond: call it where waiting is
harmless."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

MOST_FILES = 256
"""Most open files of one process that are checked."""
_LONGEST = 500
_OCTAL = re.compile(r"\\([0-7]{3})")
"""How /proc/self/mounts writes a blank (`\\040`) and such."""
MOST_MOUNTS = 24
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "vfat", "xfs", "zfs"}
)
"""File systems that no network may take away, so that asking them does not hang."""
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")


def measure_disk_space(path: str) -> Json | None:
    """`size`, `free` (bytes, for users other than root), `inodes`, `inodes_free` (null if the file
    system does not count them) and `device` of the path's file system; None: not accessible."""
    try:
        file_system = os.statvfs(path)
        device = os.stat(path).st_dev
    except OSError:
        return None
    return {
        "size": file_system.f_blocks * file_system.f_frsize,
        "free": file_system.f_bavail * file_system.f_frsize,
        "inodes": file_system.f_files or None,
        "inodes_free": file_system.f_favail if file_system.f_files else None,
        "device": device,
    }


def list_local_mounts(root: Path = Path("/")) -> list[str]:
    """Mount points of writable local file systems, as this process sees them: the first
    MOST_MOUNTS, without those of the kernel and the system."""
    try:
        with (root / "proc/self/mounts").open("rb") as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return []
    mounts = []
    for line in text.splitlines():
        _, _, rest = line.partition(" ")
        path, kind, options = (*rest.split(" "), "", "", "")[:3]
        path = _OCTAL.sub(lambda escaped: chr(int(escaped[1], 8)), path)
        own = not path.startswith(("/dev", "/proc", "/sys", "/run", "/boot", "/snap/"))
        if kind in _LOCAL and own and "rw" in options.split(","):
            mounts.append(path)
    return mounts[:MOST_MOUNTS]


def find_root_prefix(pid: int, root: Path = Path("/")) -> str:
    """The prefix of a path of the process under which we see the same file: empty unless the
    process has its own mount namespace, as in a container."""
    try:
        own = os.readlink(root / "proc/self/ns/mnt")
        return "" if os.readlink(root / f"proc/{pid}/ns/mnt") == own else f"/proc/{pid}/root"
    except OSError:
        return ""


def list_written_files(pid: int, root: Path = Path("/")) -> Iterator[str]:
    """Paths, as the process sees them, of regular files that it has open for writing."""
    folder = root / f"proc/{pid}/fd"
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MOST_FILES), strict=False)]
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(folder / name)
            if not target.startswith("/") or target.startswith(_NO_FILES):
                continue
            if len(target) <= _LONGEST and _writes(root / f"proc/{pid}/fdinfo/{name}"):
                yield target.removesuffix(" (deleted)")
        except OSError:
            continue  # closed meanwhile, or not accessible


def _writes(info: Path) -> bool:
    """Whether the `flags` (octal) of a fdinfo file say that it was opened for writing."""
    for line in info.read_text("ascii", "replace").splitlines():
        key, _, value = line.partition(":")
        if key == "flags":
            return int(value.strip() or "0", 8) & os.O_ACCMODE != os.O_RDONLY
    return False
