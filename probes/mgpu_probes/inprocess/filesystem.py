"""Whether a file on this file system can be mapped into a training process without harm.

A store into a mapped page must never fail: it would end the process by SIGBUS. It can fail where
another machine serves the file, and where the file system copies on write: then each store needs
new space, whatever was reserved before. Measured on full disks (Linux 6.18): ext4, xfs and tmpfs
keep what `posix_fallocate` reserved; btrfs does not, not even with its copy-on-write switched off
for the file, and neither does an overlay on btrfs (tests/probes/test_full_disks.py).

So only file systems that are known to keep it count. What is not known does not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_KEEPS = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs"})
_STACKED = frozenset({"overlay"})
"""They show one type and store in another."""
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x00800000
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_NOCOW_FL (linux/fs.h)."""
_FLAGS = struct.Struct("=l")


def keeps_reserved_space(file: int) -> bool:
    """Whether stores into the space that is reserved for this empty file, open for writing, cannot
    fail. May leave a flag of btrfs set on it."""
    kind = file_system(file)
    return kind in _KEEPS or (kind in _STACKED and _overwrites_in_place(file))


def file_system(descriptor: int) -> str | None:
    """Type of the file system that an open file or folder lies on, as mounted (`ext4`,
    `fuse.sshfs`, …); None: unknown."""
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
    """Whether the file system below says that it has no copy-on-write to switch off."""
    try:
        flags = _FLAGS.unpack(fcntl.ioctl(file, _GET_FLAGS, bytes(_FLAGS.size)))[0]
        fcntl.ioctl(file, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY))
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP
    return False


def mapping_refused(file: int, size: int) -> OSError | None:
    """Why a file of `size` bytes must not be mapped here; None: it may."""
    import resource  # here: a process that is no rank does without it

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and most < size:  # growing it would raise SIGXFSZ
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    if not keeps_reserved_space(file):
        kind = file_system(file) or "unknown"
        return OSError(errno.EOPNOTSUPP, f"a black box cannot be mapped on a file system of {kind}")
    return None
