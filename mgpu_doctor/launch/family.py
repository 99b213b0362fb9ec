"""The processes of a job: the first one and all that descend from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from mgpu_probes.outside import processes

from mgpu_doctor.launch import exits

MOST = 4096


@dataclass(frozen=True, slots=True)
class Member:
    pid: int
    start_ticks: int
    pidfd: int | None
    """Readable when the process has ended; None where the kernel gives none."""

    def ending(self) -> tuple[int | None, str]:
        """The wait status of the ended process, None where unknown, and how it was learnt."""
        status = exits.of_zombie(self.pid, self.start_ticks)
        if status is not None or self.pidfd is None:
            return status, "zombie"
        return exits.of_pidfd(self.pidfd), "pidfd"


class Family:
    """Finds members as they come: a look costs one listing of /proc and a read per new pid."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.members: dict[int, Member] = {}
        self._strangers: set[int] = set()
        if process := processes.read(first):
            self._join(process)

    def _join(self, process: processes.Process) -> None:
        self.members[process.pid] = Member(process.pid, process.start_ticks, _pidfd(process))

    def look(self) -> None:
        """Take in the members that came since the last look."""
        present = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._strangers &= present
        parents = {}
        for pid in present - self._strangers - self.members.keys():
            if process := processes.read(pid):
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
        """Members without a pidfd that run no more."""
        for member in list(self.members.values()):
            if member.pidfd is None and not processes.alive(member.pid, member.start_ticks):
                yield member

    def forget(self, member: Member) -> None:
        del self.members[member.pid]
        self._strangers.add(member.pid)  # a zombie that nobody reaps would come back at each look
        if member.pidfd is not None:
            os.close(member.pidfd)


def _pidfd(process: processes.Process) -> int | None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if processes.start_ticks(process.pid) in (process.start_ticks, None):
        return pidfd
    os.close(pidfd)  # the pid went to somebody else meanwhile
    return None
