"""How a process ended, as far as somebody who is not its parent can learn it."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from mgpu_probes.outside import processes

# struct pidfd_info of linux/pidfd.h: mask, cgroup id, pid, tgid, ppid, 8 user and group ids,
# exit code. PIDFD_INFO_EXIT (Linux 6.15): the exit code, once the parent has asked for it.
_PIDFD_INFO = struct.Struct("=QQ11Ii")
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3


def of_zombie(pid: int, start_ticks: int, proc: Path = Path("/proc")) -> int | None:
    """The wait status of an ended process that its parent has not waited for; else None."""
    return processes.wait_status(pid, start_ticks, proc)


def of_pidfd(pidfd: int) -> int | None:
    """The wait status of a process that was waited for; None where the kernel does not tell."""
    request = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *([0] * 13))
    try:
        answer = _PIDFD_INFO.unpack(fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request))
    except OSError:
        return None
    return int(answer[-1]) if answer[0] & _PIDFD_INFO_EXIT else None


def told(status: int | None) -> dict[str, int | None]:
    """`exit_code` and `signal` of a wait status, as a recording holds them."""
    if status is None:
        return {"exit_code": None, "signal": None}
    code = os.waitstatus_to_exitcode(status)
    return (
        {"exit_code": code, "signal": None} if code >= 0 else {"exit_code": None, "signal": -code}
    )
