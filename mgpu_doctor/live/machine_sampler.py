"""Samples this machine's GPUs and host as the case's own types, and keeps their history."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mgpu_probes.outside.host_usage import HostUsage

from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample, XidEvent
from mgpu_doctor.case.host_samples import read_host_sample
from mgpu_doctor.live.frame_source import ALL_OPTIONS, FrameOptions, Pace

if TYPE_CHECKING:
    from mgpu_probes.outside.devices import Devices

    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.case.model import Rank
    from mgpu_doctor.live.history_collector import Collector, History
    from mgpu_doctor.live.machine_recorder import Recorder

MOST_XIDS = 256
PROCESSES = 0.001
"""Of a core: what reading the ranks' CPU time and memory may take. 64 are read each second."""
DEVICES = 0.002
"""The same of GPUs: some 24 are sampled each second, 64 every other or every third one."""
UNSEEN, UNASKED = 5.0, 3.0
"""Seconds after which processes and GPUs are read again whatever it costs."""


class MachineSampler:
    """Samples on demand and keeps what it saw. Keeps the drivers open; for one thread. `recorder`:
    takes down what is sampled."""

    def __init__(
        self, recorder: Recorder | None = None, wanted: FrameOptions = ALL_OPTIONS
    ) -> None:
        self._devices: Devices | None = None
        self._reader = DeviceReader(os.uname().nodename)
        self._host = HostUsage(standstill=True)
        self._xids: deque[XidEvent] = deque(maxlen=MOST_XIDS)
        self._recorder = recorder
        self._wanted = wanted
        self._collector: Collector | None = None
        self._due: list[tuple[DeviceSample | None, HostSample | None]] = []
        """What was sampled before there was a collector."""
        self._asking = Pace(time.monotonic, time.thread_time, UNASKED, DEVICES)
        self._devices_known: DeviceSample | None = None
        self._asked_at = 0.0
        self._pace = Pace(time.monotonic, time.thread_time, UNSEEN, PROCESSES)
        self._processes: tuple[tuple[int, ...], Mapping[int, tuple[float, int]]] = (), {}
        """Whose they are, and what was read of them last."""

    def sample(self, pids: Iterable[int] = ()) -> tuple[DeviceSample | None, HostSample | None]:
        """CPU use is that since the call before."""
        before, devices = self._devices_known, self._of_devices()
        host = self._of_host(tuple(pids))
        if self._wanted.history:
            self._due.append((devices if devices is not before else None, host))
            if len(self._due) > 1 or self._collector is not None:
                self._collect()
        if self._recorder is not None:
            self._recorder.write(devices, host)
        return devices, host

    def _of_devices(self) -> DeviceSample | None:
        """Of very many GPUs not every sample tells anew, except in a recording."""
        if self._recorder is not None or self._asking.due():
            first = self._devices_known is None  # what is done once is no running cost
            self._asking.begin()
            self._devices_known = self._reader.read(self._opened().sample())
            self._asked_at = time.monotonic()
            if self._devices_known is not None:
                self._xids.extend(self._devices_known.events)
            if not first:
                self._asking.end()
        return self._devices_known

    def _opened(self) -> Devices:
        """The drivers. What asks them is loaded by the thread that asks, beside the screen."""
        if self._devices is None:
            from mgpu_probes.outside.devices import Devices

            self._devices = Devices(details=self._wanted.details, stays=self._wanted.more)
        return self._devices

    def _of_host(self, pids: tuple[int, ...]) -> HostSample | None:
        """Of very many processes not every sample tells anew: what was read some seconds ago stands
        for them, except in a recording, whose readers take differences."""
        asked, known = self._processes
        if asked == pids and self._recorder is None and not self._pace.due():
            host = read_host_sample(self._host.sample())
            return replace(host, processes=known) if host is not None else None
        self._pace.begin()
        host = read_host_sample(self._host.sample(pids))
        self._pace.end()
        self._processes = pids, host.processes if host is not None else {}
        return host

    @property
    def devices_age(self) -> float:
        """Seconds since the newest sample of the GPUs."""
        return time.monotonic() - self._asked_at if self._devices_known is not None else 0.0

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """The newest that were heard so far."""
        return tuple(self._xids)

    def look_back(self, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> None:
        """What others have sampled of this machine before; what is of another one is left out."""
        if self._wanted.history:
            here = (None, self._reader.host)
            self._collect().add_all(
                (device for device in devices if device.host in here),
                (host for host in hosts if host.host in here),
            )

    def history(self, at: float, ranks: tuple[Rank, ...] = ()) -> History | None:
        """What was sampled until `at`, seconds since the epoch; None: it is not wanted, or there is
        one sample and no rank, which make no graph."""
        if ranks and self._wanted.history:
            self._collect()
        return self._collector.history(at, ranks) if self._collector is not None else None

    def _collect(self) -> Collector:
        """What is due goes into the collector. That needs NumPy, for which neither a single look
        nor the first frame of a machine without a job shall wait."""
        if self._collector is None:
            from mgpu_doctor.live.history_collector import Collector

            self._collector = Collector()
        for devices, host in self._due:
            self._collector.add_all([devices] if devices else (), [host] if host else ())
        self._due.clear()
        return self._collector

    def named(self, source: str) -> str:
        """A source's name, with what becomes of the recording."""
        return f"{source}  {self._recorder.state}" if self._recorder else source

    def close(self) -> None:
        """Let go of the drivers; the threads that ask them end."""
        if self._devices is not None:
            self._devices.close()
