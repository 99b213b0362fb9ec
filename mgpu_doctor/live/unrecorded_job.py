"""A job without a recording, watched from outside through /proc.

No stack is read and no process is paused; only a diagnosis, on request, reads stacks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import psutil
from mgpu_probes.outside import jobs
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs import RunningJob

from mgpu_doctor.case.job_snapshots import JobSnapshot, Process, read_job_snapshot
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.process_case import GONE, case_of
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis, RankSummary
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.frame_source import Pace
from mgpu_doctor.live.gpu_watch import GpuWatch
from mgpu_doctor.live.machine_recorder import Recorder
from mgpu_doctor.live.machine_sampler import MachineSampler
from mgpu_doctor.report import text
from mgpu_doctor.rules.settings import DEFAULTS, Settings

UNSEEN = "no steps: this job was not started under observation (d: sample its stacks)"
KEPT = 2
"""Snapshots kept: the difference of two shows what was used between them."""
STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a disk or a driver",
    "T": "is stopped",
    "t": "is traced",
    "I": "idles",
}
"""Process states by their letters in proc(5)."""


class Outside:
    """The job of a process. For one thread. `recorder`: records samples of the machine."""

    def __init__(
        self,
        pid: int,
        settings: Settings = DEFAULTS,
        clock: Callable[[], float] = time.time,
        find: Callable[[int], RunningJob | None] = jobs.find,
        recorder: Recorder | None = None,
    ) -> None:
        self._pid = pid
        self._settings = settings
        self._clock = clock
        self._find = find
        self._machine = MachineSampler(recorder)
        self._gpus = GpuWatch(settings)
        self._finding = Pace(time.monotonic, time.thread_time)
        self._pace = Pace(time.monotonic, time.thread_time)
        self._job: RunningJob | None = None
        self._snapshots: deque[JobSnapshot] = deque(maxlen=KEPT)
        self._diagnosis: Diagnosis | None = None
        self._over = False

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - it reads the clock itself
        if not self._over:
            self._see()
        newest = self._diagnosis
        ranks = newest.ranks if newest is not None else ()
        devices, host = self._machine.sample(rank.pid for rank in ranks if rank.pid is not None)
        self._gpus.add(devices)
        at = self._clock()
        return Frame(
            at=at,
            source=self._name(),
            diagnosis=newest,
            heat=UNSEEN if newest else None,
            devices=devices,
            host=host,
            xids=self._machine.xids,
            ranks_age=max(0.0, at - self._snapshots[-1].at)
            if self._snapshots and not self._over
            else 0.0,
            gpus_age=self._machine.devices_age,
            hint=None if newest else f"{jobs.unseen(self._pid)}: a lists the jobs that run here.",
            history=self._machine.history(at),
        )

    def close(self) -> None:
        """Closes the drivers."""
        self._machine.close()

    def _name(self) -> str:
        name = f"from outside: process {self._pid}" + (", has ended" if self._over else "")
        return self._machine.named(name)

    def _see(self) -> None:
        if self._finding.due():
            self._finding.begin()
            job = self._find(self._pid)
            self._finding.end()
            if job is not None and job.ranks:
                self._job = job
            elif self._job is not None:
                self._poll(self._job, over=True)
                return
        if self._job is not None and self._pace.due():
            self._pace.begin()
            self._poll(self._job)
            self._pace.end()

    def _poll(self, job: RunningJob, *, over: bool = False) -> None:
        seen = read_job_snapshot(take_snapshot(job, stacks=False))
        assert seen is not None  # it has a time
        self._snapshots.append(seen)
        self._over = over or all(rank.state in GONE for rank in seen.ranks)
        # Snapshots without stacks must not be read as stacks in which no rank waits.
        case = case_of(job, self._snapshots, psutil.boot_time())
        case = replace(case, job_snapshots=(), device_samples=self._gpus.samples)
        if self._over:
            case = replace(case, job=replace(case.job, outcome=Outcome.UNKNOWN, ended=seen.at))
        diagnosis = diagnose(case, self._settings)
        before = self._snapshots[0] if len(self._snapshots) > 1 else None
        self._diagnosis = replace(
            diagnosis, ranks=tuple(_placed(rank, seen, before) for rank in diagnosis.ranks)
        )


def _placed(rank: RankSummary, now: JobSnapshot, before: JobSnapshot | None) -> RankSummary:
    """Returns the rank with the kernel's state of its main thread."""
    process = _process(now, rank.pid)
    if process is None or process.state in GONE:
        return rank
    does = STATES.get(process.state or "", "")
    if process.state != "R" and (place := process.syscall or process.wchan):
        does = f"{does} in {place}".strip()
    cores = _cores(process, now.at, _process(before, rank.pid), before)
    parts = [f"{cores:.2f} cores"] if cores is not None else []
    return replace(rank, where=text.line(", ".join([*parts, does])) or None)


def _cores(
    process: Process, at: float, old: Process | None, before: JobSnapshot | None
) -> float | None:
    if old is None or before is None or old.start_ticks != process.start_ticks:
        return None
    if process.cpu_seconds is None or old.cpu_seconds is None or at <= before.at:
        return None
    return max(0.0, process.cpu_seconds - old.cpu_seconds) / (at - before.at)


def _process(snapshot: JobSnapshot | None, pid: int | None) -> Process | None:
    listed = snapshot.processes if snapshot is not None else ()
    return next((process for process in listed if process.pid == pid), None)
