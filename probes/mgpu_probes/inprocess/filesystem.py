"""Decides whether a file can be mapped safely into a training process, by its file system.

A store into a mapped page must never fail, because SIGBUS would kill the process. It can fail on
network file systems, and on copy-on-write ones, where each store needs new space whatever was
reserved before. Measured on full disks (Linux 6.18): ext4, xfs and tmpfs keep what
`posix_fallocate` reserved; btrfs does not, even with copy-on-write switched off for the file, nor
does an overlay on btrfs (tests/probes/test_full_disks.py). Only file systems that are known to keep
it are accepted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_KEEPS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs"})
_STACKED = frozenset({"overlay"})
"""Types that store in another file system below."""
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x00800000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL (linux/fs.h)."""
_FLAGS = struct.Struct("=l")


def keeps_reserved_space(file: int) -> bool:
    """Whether stores into space reserved for this file, empty and open for writing, can never fail.
    May leave a flag of btrfs set on the file."""
    kind = file_system(file)
    return kind in _KEEPS or (kind in _STACKED and _overwrites_in_place(file))


def file_system(descriptor: int) -> str | None:
    """The type of the file system of an open file or folder (`ext4`, `fuse.sshfs`, …); None:
    unknown."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as info:
            fields = dict(line.split(b":", 1) for line in info if b":" in line)
        mount = fields[b"mnt_id"].strip()
        with open("/proc/self/mountinfo", "rb") as mounts:
            for line in mounts:
                if line.split(b" ", 1)[0] == mount:
                    return line.partition(b" - ")[2].split(b" ", 1)[0].decode("ascii", "replace")
    except (OSError, KeyError, ValueError):
        pass
    return None


def _overwrites_in_place(file: int) -> bool:
    """Whether the file system below an overlay reports that it has no copy-on-write."""
    try:
        flags = _FLAGS.unpack(fcntl.ioctl(file, _GET_FLAGS, bytes(_FLAGS.size)))[0]
        fcntl.ioctl(file, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY))
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP
    return False


def mapping_refused(file: int, size: int) -> OSError | None:
    """Why a file of `size` bytes must not be mapped here; None: it may be mapped."""
    import resource  # not at the top: only ranks need it

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < size:  # growing it would raise SIGXFSZ
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    if not keeps_reserved_space(file):
        kind = file_system(file) or "unknown"
        return OSError(errno.EOPNOTSUPP, f"a black box cannot be mapped on a file system of {kind}")
    return None
