"""The processes that descend from the first one of a job, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from mgpu_probes.outside import processes

from mgpu_doctor.launch import exit_watch

MOST = 4096


@dataclass(frozen=True, slots=True)
class Member:
    pid: int
    start_ticks: int
    pidfd: int | None
    """Readable when the process has ended; None if the kernel has no pidfds."""

    def ending(self) -> tuple[int | None, str]:
        """Returns the wait status of an ended process, None if unknown, and its source."""
        status = exit_watch.zombie_wait_status(self.pid, self.start_ticks)
        if status is not None or self.pidfd is None:
            return status, "zombie"
        return exit_watch.pidfd_wait_status(self.pidfd), "pidfd"


class Family:
    """Finds the processes that descend from the `first` ones. A poll costs one listing of /proc and
    one read per new pid. `awaited`: whether members get a pidfd."""

    def __init__(self, *first: int, awaited: bool = True) -> None:
        self.members: dict[int, Member] = {}
        self._awaited = awaited
        self._strangers: set[int] = set()
        for pid in first:
            self.adopt(pid)

    def adopt(self, pid: int) -> None:
        """Adds a process, and in the next poll those that descend from it."""
        self._strangers.clear()
        if process := processes.read_process(pid):
            self._join(process)

    def _join(self, process: processes.Process) -> None:
        pidfd = _pidfd(process) if self._awaited else None
        self.members[process.pid] = Member(process.pid, process.start_ticks, pidfd)

    def poll(self) -> None:
        """Adds the members that started since the last poll."""
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._strangers &= present
        parents = {}
        for pid in present - self._strangers - self.members.keys():
            if process := processes.read_process(pid):
                parents[pid] = process
        while len(self.members) < MOST:
            related = [process for process in parents.values() if process.parent in self.members]
            if not related:
                break
            for process in related:
                del parents[process.pid]
                self._join(process)
        self._strangers |= parents.keys()

    def gone(self) -> Iterator[Member]:
        """Returns members without a pidfd that have ended."""
        for member in list(self.members.values()):
            if member.pidfd is None and not processes.is_alive(member.pid, member.start_ticks):
                yield member

    def forget(self, member: Member) -> None:
        del self.members[member.pid]
        self._strangers.add(member.pid)  # an unreaped zombie would reappear at each poll
        if member.pidfd is not None:
            os.close(member.pidfd)


def _pidfd(process: processes.Process) -> int | None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if processes.find_start_ticks(process.pid) in (process.start_ticks, None):
        return pidfd
    os.close(pidfd)  # the pid was reused meanwhile
    return None
