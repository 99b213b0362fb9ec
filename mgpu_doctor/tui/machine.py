"""This machine as it is now: its GPUs and its host, as the case's own types."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_probes.outside.devices import Devices
from mgpu_probes.outside.host import Host

from mgpu_doctor.case.device_samples import device_sample
from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.model import HostSample
from mgpu_doctor.case.samples import host_sample


class Machine:
    """Samples on demand. Keeps the drivers open; for one thread."""

    def __init__(self) -> None:
        self._devices = Devices()
        self._host = Host(standstill=True)

    def devices(self) -> DeviceSample | None:
        return device_sample(self._devices.sample())

    def host(self, pids: Iterable[int] = ()) -> HostSample | None:
        """CPU use is that since the call before."""
        return host_sample(self._host.sample(pids))

    def close(self) -> None:
        """Let go of the drivers."""
        self._devices.close()
