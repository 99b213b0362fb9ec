"""Names of the system calls in which a training process is found waiting.

Numbers: the kernel's tables `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h` (for aarch64).
"""

from __future__ import annotations

import platform

_X86_64 = {
    0: "read", 1: "write", 7: "poll", 8: "lseek", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 24: "sched_yield", 26: "msync", 34: "pause",
    35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
    47: "recvmsg", 61: "wait4", 65: "semop", 72: "fcntl", 73: "flock", 74: "fsync",
    75: "fdatasync", 202: "futex", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait",
    247: "waitid", 257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll",
    281: "epoll_pwait", 288: "accept4", 128: "rt_sigtimedwait", 130: "rt_sigsuspend",
    217: "getdents64", 299: "recvmmsg", 332: "statx", 441: "epoll_pwait2",
}  # fmt: skip
_AARCH64 = {
    63: "read", 64: "write", 62: "lseek", 29: "ioctl", 67: "pread64", 68: "pwrite64",
    65: "readv", 66: "writev", 124: "sched_yield", 227: "msync", 101: "nanosleep",
    203: "connect", 202: "accept", 206: "sendto", 207: "recvfrom", 211: "sendmsg",
    212: "recvmsg", 260: "wait4", 193: "semop", 25: "fcntl", 32: "flock", 82: "fsync",
    83: "fdatasync", 98: "futex", 192: "semtimedop", 115: "clock_nanosleep",
    95: "waitid", 56: "openat", 79: "newfstatat", 72: "pselect6", 73: "ppoll",
    22: "epoll_pwait", 242: "accept4", 137: "rt_sigtimedwait", 133: "rt_sigsuspend",
    61: "getdents64", 243: "recvmmsg", 291: "statx", 441: "epoll_pwait2",
}  # fmt: skip
TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}

READING = frozenset({"read", "readv"})
WRITING = frozenset({"write", "writev"})
ON_A_DESCRIPTOR = (
    READING
    | WRITING
    | {"lseek", "ioctl", "pread64", "pwrite64", "getdents64", "fsync", "fdatasync"}
    | {"connect", "accept", "accept4", "sendto", "sendmsg", "recvfrom", "recvmsg", "recvmmsg"}
    | {"fcntl", "flock"}
)
"""Their first argument is a file descriptor that tells what is waited for."""


def name(number: int, machine: str | None = None) -> str:
    """The call's name; `syscall N` where it is none of the known. `machine`: as `uname -m`."""
    table = TABLES.get(machine or platform.machine(), {})
    return table.get(number, f"syscall {number}")
