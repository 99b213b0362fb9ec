"""The tasks of a Slurm step that share a host, each with an `mgpu-doctor run` of its own.

One of them samples the host, with the processes of all, and watches for hangs: of those that still
run, the one with the lowest number."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mgpu_doctor.launch.process_family import Family
from mgpu_doctor.recording.joint_recordings import name_part
from mgpu_doctor.recording.layout import HOSTS, INFO
from mgpu_doctor.recording.live_recordings import (
    find_task_process,
    is_recorded_here,
    list_tasks,
    read_object,
)

LATE = 60.0
"""Seconds after which a task without a part counts as one that records nothing. A choice: the tasks
of a step start together."""


class OtherTasks:
    """The processes of further tasks of the job on this host, of which one task takes samples. One
    that takes over from the first task is among them itself."""

    def __init__(self, recording: Path) -> None:
        self._recording = recording
        self._known: set[str] = set()
        self._family = Family(awaited=False)

    def list_pids(self) -> list[int]:
        """Their pids now; empty if there are no such tasks."""
        for task in list_tasks(self._recording):
            pid = find_task_process(self._recording, task) if task not in self._known else None
            if pid is not None:
                self._known.add(task)
                self._family.adopt(pid)
        if self._known:
            self._family.poll()
            for member in self._family.gone():
                self._family.forget(member)
        return list(self._family.members)


class EarlierTasks:
    """The tasks of the job on this host with lower numbers than `task`. Their parts of the
    recording are read once; afterwards a poll looks only at processes of this machine."""

    def __init__(self, recording: Path, host: str, task: int) -> None:
        self._recording = recording
        self._left = [f"{HOSTS}/{name_part(host, number)}" for number in range(task)]
        self._known: dict[str, dict[str, Any]] = {}
        self._began = time.monotonic()

    def have_ended(self) -> bool:
        """Whether none of them records its part of the job any more."""
        self._left = [part for part in self._left if self._records(part)]
        return not self._left

    def _records(self, part: str) -> bool:
        if part not in self._known:
            info = read_object(self._recording, f"{part}/{INFO}")
            if not info or "job_pid" not in info:  # it is starting
                return time.monotonic() - self._began < LATE
            self._known[part] = info
        return is_recorded_here(self._known[part])
