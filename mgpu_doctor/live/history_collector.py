"""Collects the time series of GPUs and hosts from samples, for graphs. NumPy is not needed: the
idle screen does without it. Those of ranks are in `rank_history`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mgpu_doctor.live.history_measures import (
    OF_ALL_DEVICES,
    OF_COUNTERS,
    OF_DEVICE,
    OF_HOST,
    OF_TRAFFIC,
    PRESSURES,
)
from mgpu_doctor.live.history_series import BLOCKS, EMPTY, Series, Trace

if TYPE_CHECKING:
    from mgpu_doctor.case.device_samples import DeviceSample
    from mgpu_doctor.case.host_samples import HostSample
    from mgpu_doctor.case.model import Rank

MOST_DEVICES = 256
MOST_HOSTS = 64

Place = tuple[str | None, int]
"""A GPU: its host (None: unknown) and its index on the host."""


class HostPast(NamedTuple):
    """Measures in the order of `OF_HOST` and of `OF_COUNTERS`."""

    use: Trace = EMPTY
    counted: Trace = EMPTY


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The past samples known at one moment. Shares the data and never changes."""

    at: float
    """Seconds since the epoch; later samples are not shown."""
    devices: Mapping[Place, Trace] = field(default_factory=dict)
    """Measures in the order of `OF_DEVICE`."""
    hosts: Mapping[str | None, HostPast] = field(default_factory=dict)
    ranks: tuple[Rank, ...] = ()
    """Ranks, whose boxes contain their history."""
    means: Mapping[str | None, Trace] = field(default_factory=dict)
    """Host -> means over its GPUs, in the order of `OF_ALL_DEVICES`."""

    @property
    def first(self) -> float | None:
        """Returns the time of the oldest sample still kept."""
        of_hosts = [trace for host in self.hosts.values() for trace in host]
        begun = [trace.first for trace in (*self.devices.values(), *of_hosts)]
        begun += [rank.started for rank in self.ranks if len(rank.steps)]
        return min((at for at in begun if at is not None and at <= self.at), default=None)


class Collector:
    """Collects series. `blocks`: see `Series`. For one thread; its results may go to others."""

    def __init__(self, blocks: float = BLOCKS) -> None:
        self._blocks = blocks
        self._devices: dict[Place, Series] = {}
        self._means: dict[str | None, Series] = {}
        self._hosts: dict[str | None, _Host] = {}

    @classmethod
    def of(cls, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> Collector:
        """Returns all samples of a recording. Nothing is merged: recordings are bounded."""
        collector = cls(math.inf)
        collector.add_all(devices, hosts)
        return collector

    def add_all(self, devices: Iterable[DeviceSample], hosts: Iterable[HostSample]) -> None:
        for sample in devices:
            self.add_devices(sample)
        for reading in hosts:
            self.add_host(reading)

    def add_devices(self, sample: DeviceSample) -> None:
        """Adds samples of GPUs. A lost GPU leaves a gap."""
        for device in sample.devices[:MOST_DEVICES]:
            place = (sample.host, device.index)
            series = self._devices.get(place)
            if series is None:
                if len(self._devices) >= MOST_DEVICES:
                    continue
                series = self._devices[place] = Series(len(OF_DEVICE), self._blocks)
            series.append(sample.at, [read(device) for read in OF_DEVICE.values()])
        means = self._means.get(sample.host)
        if means is None and len(self._means) < MOST_HOSTS:
            means = self._means[sample.host] = Series(len(OF_ALL_DEVICES), self._blocks)
        if means is not None:
            read_all = (OF_DEVICE[measure] for measure in OF_ALL_DEVICES)
            means.append(sample.at, [_mean(map(read, sample.devices)) for read in read_all])

    def add_host(self, sample: HostSample) -> None:
        host = self._hosts.get(sample.host)
        if host is None:
            if len(self._hosts) >= MOST_HOSTS:
                return
            host = self._hosts[sample.host] = _Host(self._blocks)
        host.add(sample)

    def history(self, at: float, ranks: tuple[Rank, ...] = ()) -> History:
        """Returns the history so far."""
        devices = sorted(self._devices.items(), key=lambda item: (item[0][0] or "", item[0][1]))
        hosts = sorted(self._hosts.items(), key=lambda texts: texts[0] or "")
        return History(
            at,
            {place: series.trace() for place, series in devices},
            {name: host.past() for name, host in hosts},
            ranks,
            {host: series.trace() for host, series in self._means.items()},
        )


class _Host:
    """The series of one host."""

    def __init__(self, blocks: float) -> None:
        self._use = Series(len(OF_HOST), blocks)
        self._counted = Series(len(OF_COUNTERS), blocks)
        self._counters: HostSample | None = None

    def add(self, sample: HostSample) -> None:
        self._use.append(sample.at, [read(sample) for read in OF_HOST.values()])
        if not sample.pressure and not sample.traffic:
            return
        before, self._counters = self._counters, sample
        if before is not None and sample.at > before.at:
            passed = sample.at - before.at
            shares = [
                _growth(before.pressure.get(name), sample.pressure.get(name), passed)
                for name in PRESSURES
            ]
            rates = [
                _growth(before.traffic.get(name), sample.traffic.get(name), passed)
                for name in OF_TRAFFIC.values()
            ]
            known = [None if share is None else min(1.0, share) for share in shares]
            self._counted.append(sample.at, [*known, *rates], before.at)

    def past(self) -> HostPast:
        return HostPast(self._use.trace(), self._counted.trace())


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _growth(then: float | None, now: float | None, passed: float) -> float | None:
    """Returns the growth of a counter per second; None after a reboot."""
    return None if then is None or now is None or now < then else (now - then) / passed
