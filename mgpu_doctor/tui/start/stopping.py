"""Ending a job: whom to ask, in what order, and who may."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import jobs, processes

from mgpu_doctor.case.files import read_object
from mgpu_doctor.recording.layout import INFO

ANOTHERS = "the job belongs to another user: only its owner stops it."
TERM_AFTER = 10.0
"""Seconds from SIGINT to SIGTERM: time for a checkpoint that a handler writes, as torchrun gives
its workers 30 s from SIGTERM on."""


@dataclass(frozen=True, slots=True)
class Who:
    """One process. `start_ticks`: clock ticks since boot, which tells a reused pid apart."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return processes.alive(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True)
class Aim:
    """A job to be ended. `asked`: who gets SIGINT and SIGTERM and passes them on; `roots`: whose
    families SIGKILL ends."""

    name: str
    asked: tuple[Who, ...]
    roots: tuple[Who, ...]

    @property
    def alive(self) -> bool:
        """Whether something of it still runs."""
        return any(one.alive for one in (*self.asked, *self.roots))


def aim_at_recording(recording: Path) -> Aim | str:
    """The job of a recording, or a sentence why it cannot be stopped."""
    try:
        info = read_object(recording / INFO, root=recording)
    except (OSError, ValueError):
        return f"{recording.name} does not tell which process its job is."
    if info.get("host") != os.uname().nodename:
        return "the job runs on another host: stop it there."
    if recording.stat().st_uid != os.geteuid():
        return ANOTHERS
    if info.get("boot_id") != processes.boot_id():
        return "the job ran before this machine was started."
    job = _who(info.get("job_pid"), info.get("job_start_ticks"))
    if job is None:
        return "the job has ended."
    doctor = processes.read(parent) if (parent := _parent(job.pid)) else None
    observed = doctor is not None and doctor.pid == info.get("doctor_pid")
    asked = (Who(doctor.pid, doctor.start_ticks),) if doctor and observed else (job,)
    return _ours(Aim(recording.name, asked, (job,)))


def aim_at_process(pid: int) -> Aim | str:
    """The job that a process belongs to, or a sentence why it cannot be stopped."""
    job = jobs.find(pid)
    if job is None:
        return f"{jobs.unseen(pid)}."
    ranks = [one for one in job.ranks if one.state not in "ZX"]
    first = [one for one in job.processes if one.pid == job.launcher_pid] or ranks
    asked = tuple(Who(one.pid, one.start_ticks) for one in first)
    if not asked:
        return "no process of the job is left."
    rest = tuple(Who(one.pid, one.start_ticks) for one in ranks if one not in first)
    return _ours(Aim(f"process {pid}", asked, (*asked, *rest)))


def send(aim: Aim, number: signal.Signals) -> str | None:
    """Send SIGINT or SIGTERM to who is asked, SIGKILL to all; a sentence where that fails."""
    whom = _families(aim.roots) if number is signal.SIGKILL else aim.asked
    try:
        for one in whom:
            _send(one, number)
    except OSError as error:
        return f"{number.name} cannot be sent to {aim.name} ({error.strerror})."
    return None


def _send(one: Who, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(one.pid)
        try:
            if one.alive:  # asked while the descriptor holds the pid: it is no reused one
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _families(roots: Iterable[Who]) -> list[Who]:
    found = {}
    for root in roots:
        if root.alive:
            found[root.pid] = root
            for child in processes.descendants(root.pid):
                found[child.pid] = Who(child.pid, child.start_ticks)
    return list(found.values())


def _ours(aim: Aim) -> Aim | str:
    for one in (*aim.asked, *aim.roots):
        try:
            owner = os.stat(f"/proc/{one.pid}").st_uid
        except OSError:
            continue
        if owner != os.geteuid():
            return ANOTHERS
    return aim


def _who(pid: object, ticks: object) -> Who | None:
    if not isinstance(pid, int) or pid <= 0 or not isinstance(ticks, int):
        return None
    return Who(pid, ticks) if processes.alive(pid, ticks) else None


def _parent(pid: int) -> int | None:
    found = processes.read(pid)
    return found.parent if found is not None and found.parent > 1 else None
