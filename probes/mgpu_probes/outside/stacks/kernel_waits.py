"""What the kernel says about a process without stopping it: state, CPU time, what it waits for.

Sources: proc_pid_stat(5), proc_pid_wchan(5), proc_pid_syscall(5), all from /proc: accessing the
file itself could hang with its file system. Numbers of system calls: the kernel's tables
`arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` (for aarch64).

`se.exec_start` in /proc/PID/sched (kernel/sched/debug.c) is when the thread last ran, by the
clock of its core. These clocks may differ by seconds in virtual machines, so each is read on its
own core, from the same field of a thread of ours. Kernels without CONFIG_SCHED_DEBUG leave it
unknown."""

from __future__ import annotations

import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mgpu_probes.outside import host_usage, processes
from mgpu_probes.outside.processes import PROC

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
"""System calls whose first argument is the file descriptor that they wait for."""
PIPE = "pipe:["
MOST_PROCESSES = 4_096
MOST_DESCRIPTORS = 65_536
"""Most descriptors that are read in total; each costs about 2 µs."""
MOST_TOLD = 3
_TICKS = os.sysconf("SC_CLK_TCK")
_NANO = 1e-9
_MOST_PATH = 200
MOST_CORES = 64
_LAST_RAN = re.compile(r"^se\.exec_start\s*:\s*(\d+\.\d+)$", re.MULTILINE)
_CORE = 36
"""`processor` of proc_pid_stat(5), counted from the state."""


def name_syscall(number: int, machine: str | None = None) -> str:
    """The call's name; `syscall N` if it is unknown. `machine`: as `uname -m`."""
    table = TABLES.get(machine or platform.machine(), {})
    return table.get(number, f"syscall {number}")


class Holders:
    """Finds the holders of pipes and locks. Caches every lookup, for one moment and one thread."""

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc

    def of_pipe(self, target: str, pid: int, *, writing: bool) -> tuple[str, ...]:
        """The other processes that can write into the pipe, or read from it. `pid`: the waiting
        one; `target`: `pipe:[INODE]`."""
        wanted = stat.S_IWUSR if writing else stat.S_IRUSR
        ends = self._pipes.get(target, ())
        found = dict.fromkeys(other for other, mode in ends if mode & wanted)
        return tuple(self.named(other, pid) for other in [*found][:MOST_TOLD])

    def of_lock(self, pid: int, descriptor: int) -> tuple[str, ...]:
        """The processes that hold a lock on the file that a descriptor of the process leads to."""
        file = self._file(pid, descriptor)
        if file is None:
            return ()
        found: dict[int, None] = {}
        for words in map(str.split, _text(self.proc / "locks").split("\n")):
            # NUMBER: KIND ADVISORY WRITE PID DEVICE:INODE START END (proc_locks(5)); one that
            # waits has an arrow before KIND.
            if len(words) >= 6 and words[5] == file and words[4].isdigit() and int(words[4]) > 0:
                found[int(words[4])] = None
        return tuple(self.named(other, pid) for other in [*found][:MOST_TOLD])

    def named(self, pid: int, itself: int | None = None) -> str:
        """`PID NAME`, the pid alone where there is no such process, or `itself`."""
        if pid == itself:
            return "itself"
        process = processes.read_process(pid, self.proc)
        return str(pid) if process is None else f"{pid} {process.name}"

    @cached_property
    def _pipes(self) -> dict[str, list[tuple[int, int]]]:
        """Pipe -> the processes that have it open, and their access: the mode of the descriptor's
        link (proc_pid_fd(5))."""
        found: dict[str, list[tuple[int, int]]] = {}
        left = MOST_DESCRIPTORS
        for pid in self._pids():
            for link in _links(f"{self.proc}/{pid}/fd"):
                left -= 1
                try:
                    target = os.readlink(link)
                    if target.startswith(PIPE):
                        found.setdefault(target, []).append((pid, os.lstat(link).st_mode))
                except OSError:
                    continue  # closed meanwhile
            if left <= 0:
                break
        return found

    def _pids(self) -> list[int]:
        """The pids, highest first: these started last."""
        try:
            found = [int(name) for name in os.listdir(self.proc) if name.isdecimal()]
        except OSError:
            return []
        return sorted(found, reverse=True)[:MOST_PROCESSES]

    def _file(self, pid: int, descriptor: int) -> str | None:
        """`MAJOR:MINOR:INODE` as the kernel writes it in its list of locks; None before Linux 5.14,
        which does not report the inode."""
        lines = _text(self.proc / str(pid) / "fdinfo" / str(descriptor)).split("\n")
        facts = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        mount, inode = facts.get("mnt_id"), facts.get("ino")
        for words in map(str.split, _text(self.proc / str(pid) / "mountinfo").split("\n")):
            if len(words) > 2 and words[0] == mount and inode:
                major, _, minor = words[2].partition(":")
                if major.isdigit() and minor.isdigit():
                    return f"{int(major):02x}:{int(minor):02x}:{inode}"
        return None


def _links(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from (f"{folder}/{name}" for name in names)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class KernelState:
    """A process's state. None: not readable. All None: the process is gone."""

    state: str | None = None
    """The state's letter in proc(5)."""
    cpu_seconds: float | None = None
    """Of all its threads."""
    main_cpu_seconds: float | None = None
    """Of its main thread."""
    wchan: str | None = None
    """The kernel's function in which the main thread sleeps."""
    syscall: str | None = None
    """The system call of the main thread, with the file, process or pipe it is about."""


def read_kernel_state(
    pid: int,
    started: int | None = None,
    holders: Holders | None = None,
    thread: int | None = None,
) -> KernelState:
    """The process's current state. `started`: its start ticks, to detect a reused pid. `holders`:
    shared by all processes of one snapshot. `thread`: the thread to treat as its main thread, if
    it is another one."""
    holders = holders or Holders()
    proc = holders.proc
    fields = host_usage.read_stat(proc, pid)
    if not fields or (started and int(fields[19]) != started):
        return KernelState()
    main, own = proc / str(pid), fields
    if thread is not None:
        main = main / "task" / str(thread)
        own = host_usage.read_stat(main.parent, thread) or fields
    return KernelState(
        state=own[0],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        main_cpu_seconds=_main_cpu(main),
        wchan=_wchan(main),
        syscall=_syscall(holders, pid, main),
    )


def _main_cpu(main: Path) -> float | None:
    # Counted in nanoseconds here, in hundredths of a second in `stat`.
    first = _stripped(main / "schedstat").partition(" ")[0]
    return round(int(first) * _NANO, 6) if first.isdigit() else None


def _wchan(main: Path) -> str | None:
    """The kernel's function; None for a running thread, or if the kernel does not report it."""
    found = _stripped(main / "wchan")
    return found if found not in ("", "0") else None


def _syscall(holders: Holders, pid: int, main: Path) -> str | None:
    """The system call of the main thread; None if the thread runs or it is not accessible."""
    words = _stripped(main / "syscall").split()
    if len(words) < 3 or not words[0].isdigit():
        return None
    name = name_syscall(int(words[0]))
    try:
        first, second = int(words[1], 16), int(words[2], 16)
    except ValueError:
        return name
    about = _about(holders, pid, name, first, second)
    return f"{name} {about}" if about else name


def _about(holders: Holders, pid: int, name: str, first: int, second: int) -> str | None:
    if name in ON_A_DESCRIPTOR:
        return _describe_file(holders, pid, name, first)
    if name == "wait4" and 0 < first < 1 << 31:
        return holders.named(first)
    if name == "waitid" and first == os.P_PID:
        return holders.named(second)
    return None


def _describe_file(holders: Holders, pid: int, name: str, descriptor: int) -> str | None:
    """The file behind a descriptor, and other processes that hold its pipe or lock."""
    try:
        target = os.readlink(holders.proc / str(pid) / "fd" / str(descriptor))[:_MOST_PATH]
    except OSError:
        return None
    how = ""
    others: tuple[str, ...] = ()
    if target.startswith(PIPE):
        reads = name in READING
        how = "written by" if reads else "read by"
        others = holders.of_pipe(target, pid, writing=reads)
    elif name in ("flock", "fcntl"):
        how, others = "locked by", holders.of_lock(pid, descriptor)
    return f"{target}, {how} {', '.join(others)}" if others else target


def _stripped(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def measure_idle_seconds(pids: Iterable[int], proc: Path = PROC) -> dict[int, float]:
    """pid -> seconds for which its main thread has not run; running and unknown ones are left
    out. The id of any thread counts as a pid."""
    last: dict[int, tuple[float, int]] = {}
    for pid in pids:
        fields, ran = host_usage.read_stat(proc, pid), _last_ran(proc / str(pid))
        if fields and len(fields) > _CORE and fields[0] != "R" and ran is not None:
            last[pid] = (ran, int(fields[_CORE]))
    cores = sorted({core for _, core in last.values()})[:MOST_CORES]
    now = {core: clock for core in cores if (clock := _clock(core, proc)) is not None}
    return {
        pid: max(0.0, round(now[core] - ran, 3)) for pid, (ran, core) in last.items() if core in now
    }


def _clock(core: int, proc: Path) -> float | None:
    """The time of a core's clock, in seconds; None if we may not run on that core."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})  # of this thread alone
    except OSError:
        return None
    try:
        return _last_ran(proc / "thread-self")
    finally:
        os.sched_setaffinity(0, allowed)


def _last_ran(folder: Path) -> float | None:
    try:
        found = _LAST_RAN.search((folder / "sched").read_text("utf-8", "replace"))
    except OSError:
        return None
    return None if found is None else float(found[1]) * 1e-3
