"""Device samples of a recording as typed facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from mgpu_doctor.case.device_parts import (
    ecc,
    instances,
    is_list,
    nvlinks,
    pcie,
    processes,
    share,
    topology,
    xid_events,
)
from mgpu_doctor.case.files import Json, moment, number, text, whole
from mgpu_doctor.case.gpu import Device, DeviceSample, Pcie, XidEvent

MOST_DEVICES = 256
MOST_PROCESSES = 4096
MOST_REASONS = 32
MOST_FAN = 2.0
MOST_HEARD = 4096


def device_sample(line: Mapping[str, Json]) -> DeviceSample | None:
    """One sample that stands for itself; None where it has no time."""
    return DeviceReader().read(line)


class DeviceReader:
    """Reads the lines of one host in their order, of a file or as they are sampled. In a file what
    is as before is not repeated. `host`: whose they are."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host
        self._steady: dict[int, dict[str, Any]] = {}
        self._told: dict[int, tuple[Json, ...]] = {}
        """What `_steady` was made of: of most samples it need not be made anew."""
        self._heard: dict[XidEvent, None] = {}
        """The newest, in the order in which they came."""

    def read(self, line: Mapping[str, Json]) -> DeviceSample | None:
        """One line; None where it has no time."""
        at = moment(line.get("at"))
        if at is None:
            return None
        return DeviceSample(
            at=at,
            devices=tuple(self._devices(line.get("devices"))),
            trouble=text(line.get("trouble")),
            events=tuple(self._new(line.get("events"))),
            topology=topology(line.get("topology"), MOST_DEVICES),
            took=number(line.get("took")),
            driver=text(line.get("driver"), 80),
            events_trouble=text(line.get("events_trouble")),
            kernel_log_trouble=text(line.get("kernel_log_trouble")),
            host=self.host,
        )

    def _devices(self, entries: Json) -> Iterator[Device]:
        for entry in entries[:MOST_DEVICES] if is_list(entries) else ():
            index = whole(entry.get("index")) if isinstance(entry, dict) else None
            if index is None or not isinstance(entry, dict):
                continue
            known = self._steady.get(index) if entry.get("same") is True else None
            if known is None:
                known = self._learned(index, entry)
            yield _device(index, entry, known)

    def _learned(self, index: int, entry: Mapping[str, Json]) -> dict[str, Any]:
        told = tuple(map(entry.get, _STEADY))
        if index in self._steady and told == self._told[index]:
            return {**self._steady[index], "pcie": pcie(entry.get("pcie"))}
        known = _steady(entry)
        if len(self._steady) < MOST_DEVICES or index in self._steady:
            self._steady[index], self._told[index] = known, told
        return known

    def _new(self, entries: Json) -> Iterator[XidEvent]:
        """Events are repeated in later lines, as lines may be thinned out."""
        for event in xid_events(entries):
            if event not in self._heard:
                self._heard[event] = None
                if len(self._heard) > MOST_HEARD:
                    del self._heard[next(iter(self._heard))]
                yield event


_STEADY = (
    "name", "uuid", "memory_total", "power_limit_watts", "max_sm_clock_mhz", "bus_id", "numa_node",
    "cores", "nvlinks", "nvlink_errors", "ecc", "mig", "instances", "unified_memory",
    "vendor",
)  # fmt: skip
"""Names of what seldom changes, but of `pcie`, which holds what always does, too."""


def _steady(entry: Mapping[str, Json]) -> dict[str, Any]:
    """What changes seldom or never."""
    return {
        "name": text(entry.get("name"), 100),
        "uuid": text(entry.get("uuid"), 100),
        "memory_total": whole(entry.get("memory_total")),
        "power_limit_watts": number(entry.get("power_limit_watts")),
        "max_sm_clock_mhz": number(entry.get("max_sm_clock_mhz")),
        "bus_id": text(entry.get("bus_id"), 40),
        "numa_node": whole(entry.get("numa_node"), 0, 1 << 16),
        "cores": text(entry.get("cores"), 500),
        "pcie": pcie(entry.get("pcie")),
        "nvlinks": nvlinks(entry.get("nvlinks"), entry.get("nvlink_errors")),
        "ecc": ecc(entry.get("ecc")),
        "mig": mig if isinstance(mig := entry.get("mig"), bool) else None,
        "instances": instances(entry.get("instances"), MOST_PROCESSES),
        "unified_memory": entry.get("unified_memory") is True,
        "vendor": text(entry.get("vendor"), 20) or "nvidia",
    }


def _device(index: int, entry: Mapping[str, Json], steady: dict[str, Any]) -> Device:
    reasons, listed = entry.get("clock_reasons"), processes(entry.get("processes"), MOST_PROCESSES)
    pids = entry.get("pids")
    return Device(
        index=index,
        utilization=number(entry.get("utilization")),
        memory_used=whole(entry.get("memory_used")),
        power_watts=number(entry.get("power_watts")),
        temperature=number(entry.get("temperature")),
        sm_clock_mhz=number(entry.get("sm_clock_mhz")),
        clock_reasons=tuple(
            known for one in reasons[:MOST_REASONS] if (known := text(one, 40)) is not None
        )
        if is_list(reasons)
        else None,
        pids=tuple(pid for pid in pids[:MOST_PROCESSES] if _is_pid(pid))
        if is_list(pids)
        else tuple(one.pid for one in listed),
        trouble=text(entry.get("trouble")),
        memory_busy=share(entry.get("memory_busy")),
        fan=share(entry.get("fan"), MOST_FAN),
        memory_clock_mhz=number(entry.get("memory_clock_mhz")),
        nvlink_sent=number(entry.get("nvlink_sent")),
        nvlink_received=number(entry.get("nvlink_received")),
        processes=listed,
        **{**steady, "pcie": _with_traffic(steady["pcie"], entry.get("pcie"))},
    )


def _with_traffic(steady: Pcie | None, entry: Json) -> Pcie | None:
    """What the link carries now; what it is may be known from before."""
    if steady is None and not isinstance(entry, dict):
        return None
    now = entry if isinstance(entry, dict) else {}
    sent, received = number(now.get("sent")), number(now.get("received"))
    return replace(steady or Pcie(), sent=sent, received=received)


def _is_pid(value: Json) -> TypeGuard[int]:
    return whole(value) is not None
