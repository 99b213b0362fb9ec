"""The processes of this machine that use a GPU or the most CPU, while no job is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mgpu_probes.outside.host_usage import read_proc_file
from mgpu_probes.outside.kernel_log import sees_own_pids
from mgpu_probes.outside.processes import find_uid, name_user, split_stat

from mgpu_doctor.live.frame_source import Pace

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import Device, DeviceSample

BUDGET = 0.0007
"""Share of a core for reading processes: 100 of them every two seconds."""
RENEWED_EVERY = 8
"""Readings after which user and command of a process are read again: they may change."""
LONGEST = 5.0
"""Seconds after which they are read again in any case."""
MOST_OTHERS = 64
"""Processes without a GPU that are listed, those that use the most CPU."""
KERNEL = 2
"""The pid of the parent of the kernel's threads."""
PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


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
    """Cores in use since the last sample; None in the first."""
    resident: int | None = None
    """Bytes of host memory."""
    gpus: tuple[int, ...] = ()
    """Indices of the GPUs that it uses."""
    gpu_memory: int | None = None
    """Bytes on all of them."""
    start_ticks: int | None = None
    """Clock ticks from the boot to its start, which tell it from a later process with its pid."""


class ProcessList:
    """Lists processes on demand, within its budget. For one thread."""

    def __init__(self) -> None:
        self._pace = Pace(time.monotonic, time.thread_time, LONGEST, BUDGET)
        self._known: tuple[ListedProcess, ...] = ()
        self._before: dict[tuple[int, int], int] = {}
        """(pid, start ticks) -> CPU ticks in the last sample."""
        self._looked = 0.0
        self._readings = 0
        self._owned: dict[tuple[int, int, str], _Owned] = {}
        """By pid, start ticks and name: the name changes when a program starts another in its
        place."""
        self._kernel: set[str] = set()
        """The threads of the kernel, often most of a machine's processes; not read each time."""
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
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        known = set() if self._host_pids else on_gpus.keys()
        spent: dict[tuple[int, int], int] = {}
        seen = []
        if self._readings % RENEWED_EVERY == 0:
            self._kernel.clear()
        for process in self._processes():
            key = (process.pid, process.start_ticks)
            before, spent[key] = self._before.get(key), process.cpu_ticks
            cores = None if before is None else (process.cpu_ticks - before) / TICKS / passed
            seen.append((process, cores))
        self._before = spent
        seen.sort(key=lambda pair: (pair[0].pid not in known, -(pair[1] or 0.0)))
        chosen = seen[: len(known) + MOST_OTHERS]
        self._readings += 1
        self._owned = {process.key: self._own(process) for process, _ in chosen}
        # In a container the pids on GPUs mean other processes.
        uses = {pid: (on_gpus[pid], memory[pid]) for pid in on_gpus if pid in known}
        listed = [
            _describe(process, cores, booted, self._owned[process.key], uses)
            for process, cores in chosen
        ]
        unseen = on_gpus.keys() - {process.pid for process in listed if process.gpus}
        bare = [ListedProcess(pid, gpus=on_gpus[pid], gpu_memory=memory[pid]) for pid in unseen]
        return (*bare, *listed)

    def _processes(self) -> Iterator[_Stat]:
        """Yields the processes except those of the kernel."""
        for entry in os.listdir(PROC):
            if not entry.isdigit() or entry in self._kernel:
                continue
            name, fields = split_stat(read_proc_file(f"{PROC}/{entry}/stat"))
            if len(fields) <= 21:
                continue
            parent = int(fields[1])
            if KERNEL in (parent, int(entry)):
                self._kernel.add(entry)
                continue
            spent, started, pages = int(fields[11]) + int(fields[12]), fields[19], fields[21]
            yield _Stat(int(entry), name, parent, spent, int(started), int(pages) * PAGE)

    def _own(self, process: _Stat) -> _Owned:
        """Returns user and command, which take longer to read than the rest."""
        known = self._owned.get(process.key)
        if known is None or self._readings - known.reading >= RENEWED_EVERY:
            words = read_proc_file(f"{PROC}/{process.pid}/cmdline").rstrip("\0")
            uid = find_uid(process.pid)
            known = _Owned(
                name_user(uid) if uid is not None else None,
                tuple(words.split("\0")) if words else (process.name,),
                self._readings if words else -RENEWED_EVERY,  # it has none yet, or is a zombie
            )
        return known


class _Owned(NamedTuple):
    """`reading`: the number of the reading in which it was read."""

    user: str | None
    command: tuple[str, ...]
    reading: int


class _Stat(NamedTuple):
    """What one read of /proc/PID/stat says of a process."""

    pid: int
    name: str
    parent: int
    cpu_ticks: int
    start_ticks: int
    resident: int
    """Bytes."""

    @property
    def key(self) -> tuple[int, int, str]:
        return self.pid, self.start_ticks, self.name


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
    process: _Stat,
    cores: float | None,
    booted: float,
    owned: _Owned,
    uses: dict[int, tuple[tuple[int, ...], int | None]],
) -> ListedProcess:
    """`booted`: when this machine was started, in seconds since the epoch. `uses`: pid -> its GPUs,
    and the bytes on them."""
    gpus, gpu_memory = uses.get(process.pid, ((), None))
    return ListedProcess(
        pid=process.pid,
        parent=process.parent,
        user=owned.user,
        command=owned.command,
        started=booted + process.start_ticks / TICKS,
        start_ticks=process.start_ticks,
        cores=None if cores is None else max(0.0, cores),
        resident=process.resident,
        gpus=gpus,
        gpu_memory=gpu_memory,
    )
