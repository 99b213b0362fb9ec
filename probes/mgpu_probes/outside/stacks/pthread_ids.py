"""The kernel's ids of threads whose pthread_t is known, from the memory of their process.

Python before 3.11 keeps no other id of a thread. For glibc, pthread_t is the address of a thread's
`struct pthread`, which holds the kernel's id behind a header and a list (nptl/descr.h, glibc 2.3 to
2.41). Where the layout differs, as in musl, what stands there is no id of a thread: none is known.
"""

from __future__ import annotations

import os
import platform
import struct

from mgpu_probes.outside.processes import PROC

_OFFSETS = {"x86_64": 0x2D0, "aarch64": 0xD0}
"""Bytes before the id, by machine: `pahole -C pthread libc.so.6` shows them."""
_MOST = 1 << 62


def read_thread_id(pid: int, pthread: int) -> int | None:
    """The thread's id in the innermost pid namespace of its process; None: unknown. Neither pauses
    nor changes the process; needs the permission to read its memory."""
    offset = _OFFSETS.get(platform.machine())
    if offset is None or not 0 < pthread < _MOST:
        return None
    try:
        memory = os.open(PROC / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        raw = os.pread(memory, 4, pthread + offset)
    except OSError:
        return None
    finally:
        os.close(memory)
    (id,) = struct.unpack("=i", raw) if len(raw) == 4 else (0,)
    return id if id > 0 else None
