"""What the kernel tells of a process without stopping it: its state, its time on CPUs, and what
its main thread waits for. Sources: proc_pid_stat(5), proc_pid_wchan(5), proc_pid_syscall(5)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import tasks
from mgpu_probes.outside.stacks import syscalls
from mgpu_probes.outside.stacks.holders import PIPE, Holders

_TICKS = os.sysconf("SC_CLK_TCK")
_NANO = 1e-9
_MOST_PATH = 200


@dataclass(frozen=True, slots=True)
class Moment:
    """None: could not be read. All None: the process is gone."""

    state: str | None = None
    """Letter of proc(5)."""
    cpu_seconds: float | None = None
    """Of all its threads."""
    main_cpu_seconds: float | None = None
    """Of its main thread."""
    wchan: str | None = None
    """The kernel's function in which the main thread sleeps."""
    syscall: str | None = None
    """The system call of the main thread, with the file, process or pipe it is about."""


def moment(
    pid: int,
    started: int | None = None,
    holders: Holders | None = None,
    thread: int | None = None,
) -> Moment:
    """The process now. `started`: its start ticks, against a pid that was given away anew.
    `holders`: shared by all that is looked at in one moment. `thread`: the one that counts as its
    main thread, if that is another."""
    holders = holders or Holders()
    proc = holders.proc
    fields = tasks.stat(proc, pid)
    if not fields or (started and int(fields[19]) != started):
        return Moment()
    main, own = proc / str(pid), fields
    if thread is not None:
        main = main / "task" / str(thread)
        own = tasks.stat(main.parent, thread) or fields
    return Moment(
        state=own[0],
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        main_cpu_seconds=_main_cpu(main),
        wchan=_wchan(main),
        syscall=_syscall(holders, pid, main),
    )


def _main_cpu(main: Path) -> float | None:
    # Counted in nanoseconds here, in hundredths of a second in `stat`.
    first = _text(main / "schedstat").partition(" ")[0]
    return round(int(first) * _NANO, 6) if first.isdigit() else None


def _wchan(main: Path) -> str | None:
    """The kernel writes 0 for one that runs, and where it does not tell."""
    found = _text(main / "wchan")
    return found if found not in ("", "0") else None


def _syscall(holders: Holders, pid: int, main: Path) -> str | None:
    """None for one that runs, and where it may not be seen."""
    words = _text(main / "syscall").split()
    if len(words) < 3 or not words[0].isdigit():
        return None
    name = syscalls.name(int(words[0]))
    try:
        first, second = int(words[1], 16), int(words[2], 16)
    except ValueError:
        return name
    about = _about(holders, pid, name, first, second)
    return f"{name} {about}" if about else name


def _about(holders: Holders, pid: int, name: str, first: int, second: int) -> str | None:
    if name in syscalls.ON_A_DESCRIPTOR:
        return _file(holders, pid, name, first)
    if name == "wait4" and 0 < first < 1 << 31:
        return holders.named(first)
    if name == "waitid" and first == os.P_PID:
        return holders.named(second)
    return None


def _file(holders: Holders, pid: int, name: str, descriptor: int) -> str | None:
    """The file behind a descriptor, and who else holds what is waited for."""
    try:
        target = os.readlink(holders.proc / str(pid) / "fd" / str(descriptor))[:_MOST_PATH]
    except OSError:
        return None
    how = ""
    others: tuple[str, ...] = ()
    if target.startswith(PIPE):
        reads = name in syscalls.READING
        how = "written by" if reads else "read by"
        others = holders.of_pipe(target, pid, writing=reads)
    elif name in ("flock", "fcntl"):
        how, others = "locked by", holders.of_lock(pid, descriptor)
    return f"{target}, {how} {', '.join(others)}" if others else target


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
