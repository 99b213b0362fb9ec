"""Samples this machine's GPUs and host into the types of `case`, and keeps their history."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from mgpu_probes.outside.host_usage import HostUsage
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceReader, DeviceSample, XidEvent
from mgpu_doctor.case.host_samples import decode_host_sample
from mgpu_doctor.live.frame_source import ALL_OPTIONS, FrameOptions, Pace
from mgpu_doctor.recording.device_lines import STEADY, TRAFFIC

if TYPE_CHECKING:
    from mgpu_probes.outside.devices import Devices

    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.case.model import Rank
    from mgpu_doctor.live.history_collector import Collector, History
    from mgpu_doctor.live.machine_recorder import Recorder
    from mgpu_doctor.live.process_list import ListedProcess, ProcessList

MOST_XIDS = 256
THREADS = "OPENBLAS_NUM_THREADS"
PROCESSES = 0.001
"""Share of a core for reading the ranks' CPU time and memory. It allows 64 ranks per second."""
DEVICES = 0.002
"""Share of a core for GPUs: about 24 are sampled every second, 64 every two or three seconds."""
UNSEEN, UNASKED = 5.0, 3.0
"""Seconds after which processes and GPUs are read again in any case."""


class MachineSampler:
    """Samples on demand and keeps the samples. Keeps the drivers open; for one thread at a time.
    `recorder`: records the samples."""

    def __init__(
        self, recorder: Recorder | None = None, wanted: FrameOptions = ALL_OPTIONS
    ) -> None:
        self._devices: Devices | None = None
        self._reader = DeviceReader(os.uname().nodename)
        self._steady = _SteadyFacts()
        self._host = HostUsage(standstill=True)
        self._xids: deque[XidEvent] = deque(maxlen=MOST_XIDS)
        self._recorder = recorder
        self._wanted = wanted
        self._collector: Collector | None = None
        self._due: list[tuple[DeviceSample | None, HostSample | None]] = []
        """Samples taken before there was a collector."""
        self._asking = Pace(time.monotonic, time.thread_time, UNASKED, DEVICES)
        self._devices_known: DeviceSample | None = None
        self._asked_at = 0.0
        self._pace = Pace(time.monotonic, time.thread_time, UNSEEN, PROCESSES)
        self._processes: tuple[tuple[int, ...], Mapping[int, tuple[float, int]]] = (), {}
        """The processes, and what was last read of them."""
        self._list: ProcessList | None = None
        self._frames = 0

    def begin(self) -> None:
        """Starts to read the GPUs, and does not wait for them."""
        self._opened().begin()

    def sample(self, pids: Iterable[int] = ()) -> tuple[DeviceSample | None, HostSample | None]:
        """Returns a sample. CPU use covers the time since the previous call."""
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
        """Returns the sample of GPUs. With many GPUs not every call takes a new one, except while
        recording."""
        if self._recorder is not None or self._asking.due():
            first = self._devices_known is None  # one-time work is no running cost
            self._asking.begin()
            sample = self._steady.leave_out(self._opened().sample())
            self._devices_known = self._reader.decode(_as_line(sample))
            self._asked_at = time.monotonic()
            if self._devices_known is None:
                self._steady = _SteadyFacts()
            else:
                self._xids.extend(self._devices_known.events)
            if not first:
                self._asking.end()
        return self._devices_known

    def _opened(self) -> Devices:
        """Returns the drivers. Their modules are imported only here: not every frame has GPUs of
        this machine."""
        if self._devices is None:
            from mgpu_probes.outside.devices import Devices

            self._devices = Devices(stays=self._wanted.more)
        return self._devices

    def _of_host(self, pids: tuple[int, ...]) -> HostSample | None:
        """Returns the host's sample. With many processes, values some seconds old are reused,
        except while recording, because readers of recordings take differences."""
        asked, known = self._processes
        if asked == pids and self._recorder is None and not self._pace.due():
            host = decode_host_sample(_as_line(self._host.sample()))
            return structs.replace(host, processes=known) if host is not None else None
        self._pace.begin()
        host = decode_host_sample(_as_line(self._host.sample(pids)))
        self._pace.end()
        self._processes = pids, host.processes if host is not None else {}
        return host

    @property
    def devices_age(self) -> float:
        """Seconds since the newest sample of the GPUs."""
        return time.monotonic() - self._asked_at if self._devices_known is not None else 0.0

    @property
    def xids(self) -> tuple[XidEvent, ...]:
        """The newest XIDs so far."""
        return tuple(self._xids)

    def look_back(self, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> None:
        """Adds earlier samples of this machine that other processes recorded; those of other
        machines are left out."""
        if self._wanted.history:
            here = (None, self._reader.host)
            self._collect().add_all(
                (device for device in devices if device.host in here),
                (host for host in hosts if host.host in here),
            )

    def history(self, at: float, ranks: tuple[Rank, ...] = ()) -> History | None:
        """Returns the samples until `at`, seconds since the epoch; None if not needed, or if a
        single sample without ranks makes no graph."""
        if ranks and self._wanted.history:
            self._collect()
        return self._collector.history(at, ranks) if self._collector is not None else None

    def _collect(self) -> Collector:
        """Moves samples into the collector. Its modules are imported neither for a single frame nor
        for the first frame without a job."""
        if self._collector is None:
            from mgpu_doctor.live.history_collector import Collector

            self._collector = Collector()
        for devices, host in self._due:
            self._collector.add_all([devices] if devices else (), [host] if host else ())
        self._due.clear()
        return self._collector

    def list_processes(self) -> tuple[ListedProcess, ...]:
        """Returns the processes on GPUs and those that use the most CPU. Like the collector, its
        modules are not imported for a single frame or the first one."""
        self._frames += 1
        if self._frames < 2:
            return ()
        if self._list is None:
            from mgpu_doctor.live.process_list import ProcessList

            self._list = ProcessList()
        return self._list.read(self._devices_known)

    def named(self, source: str) -> str:
        """Returns a source's name with the state of the recording."""
        return f"{source}  {self._recorder.state}" if self._recorder else source

    def close(self) -> None:
        """Closes the drivers; the sampling threads end."""
        if self._devices is not None:
            self._devices.close()


@contextlib.contextmanager
def numpy_on_one_thread() -> Iterator[None]:
    """Lets NumPy, if it is imported now, start no threads: it has one for each core, and memory
    for each. Jobs that are started later do not inherit it."""
    if THREADS in os.environ or "numpy" in sys.modules:
        yield
        return
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[THREADS]


class _SteadyFacts:
    """Leaves out what is as in the sample before, as recordings do: the reader remembers it, and
    the NVLinks of 8 GPUs are most of a sample."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, Any]] = {}

    def leave_out(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {**sample, "devices": [self._short(device) for device in sample["devices"]]}

    def _short(self, device: Mapping[str, Any]) -> Mapping[str, Any]:
        pcie = device.get("pcie") or {}
        now = {name: device[name] for name in STEADY if name in device}
        now["pcie"] = {name: value for name, value in pcie.items() if name not in TRAFFIC}
        if self._before.get(device["index"]) != now:
            self._before[device["index"]] = now
            return device
        short = {name: value for name, value in device.items() if name not in STEADY}
        traffic = {name: pcie.get(name) for name in TRAFFIC} if pcie else None
        return {**short, "same": True, "pcie": traffic}


def _as_line(sample: Mapping[str, object]) -> bytes:
    """Returns a sample as a line of a recording, which is read in a tenth of the time."""
    try:
        return msgspec.json.encode(sample)
    except UnicodeEncodeError:  # a name that is not Unicode
        import json

        return json.dumps(sample).encode()
