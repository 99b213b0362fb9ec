"""Gathers samples into series: live ones as frames are made, recorded ones all at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.case.model import Rank
from mgpu_doctor.live.history.measures import OF_DEVICE, OF_HOST, OF_PRESSURE, PRESSURES
from mgpu_doctor.live.history.series import BLOCKS, EMPTY, Series, Trace

MOST_DEVICES = 256


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """What is known of the past at one moment. Takes no copies, and never changes."""

    at: float
    """Seconds since the epoch; what came later is not shown."""
    devices: Mapping[int, Trace] = field(default_factory=dict)
    """By the GPU's index; measures in the order of `OF_DEVICE`."""
    host: Trace = EMPTY
    pressure: Trace = EMPTY
    ranks: tuple[Rank, ...] = ()
    """Their boxes hold their past."""

    @property
    def first(self) -> float | None:
        """When the first thing was measured that is still known."""
        begun = [trace.first for trace in (*self.devices.values(), self.host, self.pressure)]
        begun += [rank.started for rank in self.ranks if len(rank.steps)]
        return min((at for at in begun if at is not None and at <= self.at), default=None)


class Collector:
    """`blocks`: see `Series`. For one thread; what it hands out may go to others."""

    def __init__(self, blocks: float = BLOCKS) -> None:
        self._blocks = blocks
        self._devices: dict[int, Series] = {}
        self._host = Series(len(OF_HOST), blocks)
        self._pressure = Series(len(OF_PRESSURE), blocks)
        self._counters: HostSample | None = None

    @classmethod
    def of(cls, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> Collector:
        """All samples of a recording, which is bounded itself: nothing is merged."""
        collector = cls(math.inf)
        collector.add_all(devices, hosts)
        return collector

    def add_all(self, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> None:
        for sample in devices:
            self.add_devices(sample)
        for reading in hosts:
            self.add_host(reading)

    def add_devices(self, sample: DeviceSample) -> None:
        """A GPU that is lost leaves a gap: nothing of it is known."""
        for device in sample.devices[:MOST_DEVICES]:
            series = self._devices.get(device.index)
            if series is None:
                if len(self._devices) >= MOST_DEVICES:
                    continue
                series = self._devices[device.index] = Series(len(OF_DEVICE), self._blocks)
            series.append(sample.at, [read(device) for read in OF_DEVICE.values()])

    def add_host(self, sample: HostSample) -> None:
        self._host.append(sample.at, [read(sample) for read in OF_HOST.values()])
        if not sample.pressure:
            return
        before, self._counters = self._counters, sample
        if before is not None and sample.at > before.at:
            shares = [_share(before, sample, name) for name in PRESSURES]
            self._pressure.append(sample.at, shares, before.at)

    def history(self, at: float, ranks: tuple[Rank, ...] = ()) -> History:
        """What is known now."""
        return History(
            at,
            {index: series.trace() for index, series in sorted(self._devices.items())},
            self._host.trace(),
            self._pressure.trace(),
            ranks,
        )


def _share(before: HostSample, sample: HostSample, name: str) -> float | None:
    """Of the time since the sample before, by counters of seconds; None after a new boot."""
    then, now = before.pressure.get(name), sample.pressure.get(name)
    if then is None or now is None or now < then:
        return None
    return min(1.0, (now - then) / (sample.at - before.at))
