"""The processes of this machine that use a GPU or the most CPU, while no job is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from mgpu_probes.outside.kernel_log import sees_own_pids
from mgpu_probes.outside.processes import name_user

from mgpu_doctor.live.frame_source import Pace

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device, DeviceSample

BUDGET = 0.004
"""Share of a core for reading processes: 200 of them every second or two."""
LONGEST = 5.0
"""Seconds after which they are read again in any case."""
MOST_OTHERS = 64
"""Processes without a GPU that are listed, those that use the most CPU."""


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process. None: unknown, as of a host's process seen from a container."""

    pid: int
    parent: int | None = None
    user: str | None = None
    command: tuple[str, ...] = ()
    """Empty for a thread of the kernel, or if unknown."""
    started: float | None = None
    """Seconds since the epoch."""
    cores: float | None = None
    """Cores in use since the last look; None at the first."""
    resident: int | None = None
    """Bytes of host memory."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that it uses."""
    gpu_memory: int | None = None
    """Bytes on all of them."""


class ProcessList:
    """Lists processes on demand, within its budget. For one thread."""

    def __init__(self) -> None:
        self._pace = Pace(time.monotonic, time.thread_time, LONGEST, BUDGET)
        self._known: tuple[ListedProcess, ...] = ()
        self._before: dict[tuple[int, float], float] = {}
        """(pid, start) -> CPU seconds at the last look."""
        self._looked = 0.0
        self._host_pids = not sees_own_pids()

    def read(self, devices: DeviceSample | None) -> tuple[ListedProcess, ...]:
        """Returns the processes on GPUs, and those that use the most CPU."""
        if self._pace.due():
            self._pace.begin()
            self._known = self._read(devices.devices if devices is not None else ())
            self._pace.end()
        return self._known

    def _read(self, devices: Iterable[Device]) -> tuple[ListedProcess, ...]:
        on_gpus, memory = _uses(devices)
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        spent: dict[tuple[int, float], float] = {}
        seen = []
        for process in _processes():
            key = (process.pid, process.info["create_time"] or 0.0)
            times, before = process.info["cpu_times"], self._before.get(key)
            if times is not None:
                spent[key] = times.user + times.system
            used = spent.get(key)
            cores = None if used is None or before is None else (used - before) / passed
            seen.append((process, cores))
        self._before = spent
        known = set() if self._host_pids else on_gpus.keys()
        seen.sort(key=lambda pair: (pair[0].pid not in known, -(pair[1] or 0.0)))
        listed = [
            _describe(process, cores, on_gpus, memory, in_container=self._host_pids)
            for process, cores in seen[: len(known) + MOST_OTHERS]
        ]
        unseen = on_gpus.keys() - {process.pid for process in listed if process.gpus}
        bare = [ListedProcess(pid, gpus=on_gpus[pid], gpu_memory=memory[pid]) for pid in unseen]
        return (*bare, *listed)


def _processes() -> Iterator[psutil.Process]:
    """Yields the processes except those of the kernel."""
    for process in psutil.process_iter(["ppid", "create_time", "cpu_times", "memory_info"]):
        if process.info["ppid"] != 2 and process.pid != 2:
            yield process


def _uses(
    devices: Iterable[Device],
) -> tuple[dict[int, tuple[int, ...]], dict[int, int | None]]:
    """Returns pid -> GPUs, and pid -> bytes on them, as the driver lists them."""
    on_gpus: dict[int, tuple[int, ...]] = {}
    memory: dict[int, int | None] = {}
    for device in devices:
        bytes_of = {process.pid: process.memory for process in device.processes}
        parts = (pid for part in device.instances for pid in part.pids)
        for pid in dict.fromkeys((*device.pids, *bytes_of, *parts)):
            on_gpus[pid] = (*on_gpus.get(pid, ()), device.index)
            more = bytes_of.get(pid)
            if more is not None:
                memory[pid] = (memory.get(pid) or 0) + more
            memory.setdefault(pid, None)
    return on_gpus, memory


def _describe(
    process: psutil.Process,
    cores: float | None,
    on_gpus: dict[int, tuple[int, ...]],
    memory: dict[int, int | None],
    *,
    in_container: bool,
) -> ListedProcess:
    """Also reads what takes longer: user and command. `in_container`: the pids of GPUs mean other
    processes."""
    info = process.info
    try:
        command = tuple(process.cmdline()) or (process.name(),)
    except psutil.Error:
        command = ()
    try:
        user = name_user(os.stat(f"/proc/{process.pid}").st_uid)
    except OSError:
        user = None
    return ListedProcess(
        pid=process.pid,
        parent=info["ppid"],
        user=user,
        command=command,
        started=info["create_time"],
        cores=None if cores is None else max(0.0, cores),
        resident=info["memory_info"].rss if info["memory_info"] is not None else None,
        gpus=() if in_container else on_gpus.get(process.pid, ()),
        gpu_memory=None if in_container else memory.get(process.pid),
    )
