"""This machine as it is now: its GPUs and its host, as the case's own types, and what they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mgpu_probes.outside.devices import Devices
from mgpu_probes.outside.host import Host

from mgpu_doctor.case.device_samples import DeviceReader
from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.model import HostSample, Rank
from mgpu_doctor.case.samples import host_sample
from mgpu_doctor.live.wanted import EVERYTHING, Wanted

if TYPE_CHECKING:
    from mgpu_doctor.live.history.collect import Collector, History
    from mgpu_doctor.live.recorder import Recorder


class Machine:
    """Samples on demand and keeps what it saw. Keeps the drivers open; for one thread. `recorder`:
    takes down what is sampled."""

    def __init__(self, recorder: Recorder | None = None, wanted: Wanted = EVERYTHING) -> None:
        self._devices = Devices(stays=wanted.more)
        self._reader = DeviceReader()
        self._host = Host(standstill=True)
        self._recorder = recorder
        self._collector = _collector() if wanted.history else None

    def sample(self, pids: Iterable[int] = ()) -> tuple[DeviceSample | None, HostSample | None]:
        """CPU use is that since the call before."""
        devices = self._reader.read(self._devices.sample())
        host = host_sample(self._host.sample(pids))
        if self._collector is not None:
            self._collector.add_all([devices] if devices else (), [host] if host else ())
        if self._recorder is not None:
            self._recorder.write(devices, host)
        return devices, host

    def look_back(self, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> None:
        """What others have sampled of this machine before."""
        if self._collector is not None:
            self._collector.add_all(devices, hosts)

    def history(self, at: float, ranks: tuple[Rank, ...] = ()) -> History | None:
        """What was sampled until `at`, seconds since the epoch; None: it is not wanted."""
        return self._collector.history(at, ranks) if self._collector is not None else None

    def named(self, source: str) -> str:
        """A source's name, with what becomes of the recording."""
        return f"{source}  {self._recorder.state}" if self._recorder else source

    def close(self) -> None:
        """Let go of the drivers; the threads that ask them end."""
        self._devices.close()


def _collector() -> Collector:
    from mgpu_doctor.live.history.collect import Collector  # NumPy: a single look does without

    return Collector()
