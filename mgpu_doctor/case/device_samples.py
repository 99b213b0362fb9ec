"""Samples of a host's GPUs, from `devices.jsonl`. Every field may be unknown (None)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, structs

from mgpu_doctor.case.lenient_json import (
    Json,
    Moment,
    Pid,
    Share,
    Text,
    Whole,
    line_decoder,
    reader,
)

MOST_DEVICES = 256
MOST_PROCESSES = 4096
MOST_HEARD = 4096
Lanes = Annotated[int, Meta(ge=0, le=99)]
Number = Annotated[int, Meta(ge=0, le=1 << 16)]
Label = Annotated[str, Meta(max_length=100)]
Kind = Annotated[str, Meta(max_length=40)]
KindName = Annotated[str, Meta(min_length=1, max_length=40)]
Pids = Annotated[tuple[Whole, ...], Meta(max_length=MOST_PROCESSES)]
Table = Annotated[
    tuple[Annotated[tuple[Kind, ...], Meta(max_length=1024)], ...], Meta(max_length=1024)
]
Counts = Annotated[tuple[tuple[KindName, Whole], ...], Meta(max_length=16)]


CLOCK_REASONS = {
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_power_brake": "the power supply's brake",
    "hw_slowdown": "hardware slowdown",
    "power_cap": "power cap",
    "clocks_setting": "a clock setting",
    "sync_boost": "another GPU of its sync boost group",
}
"""NVML's clock event reasons that slow a device down, in words, the most informative first."""
HARD_CLOCK_REASONS = ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown")
"""Reasons that a healthy device under load does not have; a power cap is normal under full load."""


class Pcie(msgspec.Struct, frozen=True):
    """The link to the host. Generation and width (lanes) change with load: an idle link sleeps."""

    generation: Lanes | None = None
    width: Lanes | None = None
    generation_most: Lanes | None = None
    """Maximum of device and slot together."""
    width_most: Lanes | None = None
    sent: float | None = None
    """Bytes per second, from the GPU to the host."""
    received: float | None = None
    replays: Whole | None = None
    """Counter since the driver was loaded."""


class NvLink(msgspec.Struct, frozen=True):
    """One NVLink. Errors are counters since the driver was loaded, by kind: `crc_flit`, `crc_data`,
    `replay`, `recovery`, `ecc`."""

    link: Number
    up: bool | None = None
    remote: Literal["gpu", "switch", "cpu"] | None = None
    errors: Counts = ()


class Ecc(msgspec.Struct, frozen=True):
    """Memory errors that the hardware found. `volatile`: since the driver was loaded."""

    corrected: Whole | None = None
    uncorrected: Whole | None = None
    corrected_ever: Whole | None = None
    uncorrected_ever: Whole | None = None
    remapped: Whole | None = None
    """Rows remapped, or pages retired before Ampere, for uncorrectable errors."""
    pending: bool | None = None
    """Whether a remap or retirement is pending until a reset of the GPU."""
    failed: bool | None = None
    """Whether a remap failed because no spare rows are left."""


class DeviceProcess(msgspec.Struct, frozen=True):
    """A process on the device. `pid`: as the host numbers it, also inside a container."""

    pid: Pid
    memory: Whole | None = None
    """Bytes."""
    kind: Literal["compute", "graphics", "mps"] = "compute"


class MigInstance(msgspec.Struct, frozen=True):
    """A part of a GPU in MIG mode: NVML reports its memory, no utilization of its own."""

    uuid: Label | None = None
    gpu_instance: Number | None = None
    compute_instance: Number | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    pids: Annotated[tuple[Pid, ...], Meta(max_length=MOST_PROCESSES)] = ()


class XidEvent(msgspec.Struct, frozen=True):
    """An XID from the driver's events or the kernel's log."""

    at: Moment
    index: Whole | None
    """Index of the GPU; None: unknown, or not listed."""
    number: Number
    bus_id: Kind | None = None
    """Its PCI address, if the kernel's log has it: `0000:3b:00`."""
    logged: bool = False
    """Whether it is from the kernel's log instead of the driver's events."""


class Topology(msgspec.Struct, frozen=True):
    """How the GPUs of a host are connected; this never changes while the host is up."""

    levels: Table = ()
    """`levels[i][j]` between GPUs i and j: `SELF`, `NVL` (NVLink), `PIX`, `PXB`, `PHB`, `NODE`,
    `SYS`, or `?`; the letters of `nvidia-smi topo -m`."""
    peer: Table = ()
    """Whether i reaches j's memory by itself: `OK`, or NVML's reason (`CNS`, `GNS`, `TNS`, `DR`,
    `NS`), or `?`."""

    def checked(self) -> "Topology | None":
        """The topology, unknown words as `?`; None unless both tables are square, of one size."""
        levels, peer = _checked(self.levels, _LEVELS), _checked(self.peer, _REACHES)
        if not levels or not peer or len(levels) != len(peer):
            return None
        return Topology(levels, peer)


def _checked(table: Table, known: frozenset[str]) -> Table | None:
    if len(table) > MOST_DEVICES or any(len(row) != len(table) for row in table):
        return None
    return tuple(tuple(cell if cell in known else "?" for cell in row) for row in table)


_LEVELS = frozenset({"SELF", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS"})
_REACHES = frozenset({"OK", "CNS", "GNS", "TNS", "DR", "NS"})


class Device(msgspec.Struct, frozen=True):
    """One GPU at one moment. Every field may be unknown."""

    index: int
    name: str | None = None
    uuid: str | None = None
    utilization: float | None = None
    """0..1: share of time in which a kernel ran (also while it spins in a collective)."""
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    clock_reasons: tuple[str, ...] | None = None
    """What keeps the clock below its maximum: idle, power_cap, sw_thermal, hw_thermal,
    hw_slowdown, hw_power_brake, clocks_setting, sync_boost, display."""
    pids: tuple[int, ...] = ()
    """Pids in the host's numbering, also inside a container."""
    trouble: str | None = None
    """Why nothing or not everything could be read, e.g. `GPU is lost`."""
    memory_busy: float | None = None
    """0..1: share of time in which device memory was read or written."""
    fan: float | None = None
    """Fan speed as a share, 0..1, of its nominal maximum."""
    memory_clock_mhz: float | None = None
    bus_id: str | None = None
    """PCI address, `0000:1b:00.0`, as the kernel's XID lines and sysfs write it."""
    numa_node: int | None = None
    cores: str | None = None
    """CPU cores near the device, as the kernel writes a list: `0-31,64-95`."""
    pcie: Pcie | None = None
    nvlinks: tuple[NvLink, ...] = ()
    nvlink_sent: float | None = None
    """Bytes per second, all links together."""
    nvlink_received: float | None = None
    ecc: Ecc | None = None
    mig: bool | None = None
    """Whether it is in MIG mode; its parts are `instances`."""
    instances: tuple[MigInstance, ...] = ()
    unified_memory: bool = False
    """Whether the device shares the host's memory (GB10, Jetson)."""
    processes: tuple[DeviceProcess, ...] = ()
    vendor: str = "nvidia"


class DeviceSample(msgspec.Struct, frozen=True):
    at: float
    devices: tuple[Device, ...]
    trouble: str | None = None
    """Why there are no devices at all, e.g. no NVIDIA driver."""
    events: tuple[XidEvent, ...] = ()
    """XIDs since the previous sample."""
    topology: Topology | None = None
    """Present in the first sample of a recording and occasionally later."""
    took: float | None = None
    """Seconds that reading all devices took."""
    driver: str | None = None
    """The driver's version."""
    events_trouble: str | None = None
    """Why XIDs are not heard from the driver."""
    kernel_log_trouble: str | None = None
    """Why XIDs are not read from the kernel's log; None also if this was not tried."""
    host: str | None = None
    """The host of the devices; None: unknown."""


class _Entry(msgspec.Struct, frozen=True):
    """A device in a line. What a device of its line leaves out is unknown, or, if it says `same`,
    as in the line before."""

    index: Whole
    same: bool | None = None
    utilization: float | None = None
    memory_used: Whole | None = None
    power_watts: float | None = None
    temperature: float | None = None
    sm_clock_mhz: float | None = None
    clock_reasons: Annotated[tuple[KindName, ...], Meta(max_length=32)] | None = None
    pids: Pids | None = None
    trouble: Text | None = None
    memory_busy: Share | None = None
    fan: Annotated[float, Meta(ge=0, le=2)] | None = None
    memory_clock_mhz: float | None = None
    nvlink_sent: float | None = None
    nvlink_received: float | None = None
    processes: Annotated[tuple[DeviceProcess, ...], Meta(max_length=MOST_PROCESSES)] | None = None
    pcie: Pcie | None = None
    # The following rarely or never changes.
    name: Label | None = None
    uuid: Label | None = None
    memory_total: Whole | None = None
    power_limit_watts: float | None = None
    max_sm_clock_mhz: float | None = None
    bus_id: Kind | None = None
    numa_node: Number | None = None
    cores: Text | None = None
    nvlinks: Annotated[tuple[NvLink, ...], Meta(max_length=64)] | None = None
    nvlink_errors: Annotated[tuple[KindName, ...], Meta(max_length=16)] | None = None
    """Counters that are 0 where a link leaves them out."""
    ecc: Ecc | None = None
    mig: bool | None = None
    instances: Annotated[tuple[MigInstance, ...], Meta(max_length=64)] | None = None
    unified_memory: bool | None = None
    vendor: Annotated[str, Meta(max_length=20)] | None = None

    def links(self) -> tuple[NvLink, ...]:
        """The NVLinks, each with all its counters by name."""
        zeros = dict.fromkeys(self.nvlink_errors or (), 0)
        counted = [(link, {**zeros, **dict(link.errors)}) for link in self.nvlinks or ()]
        # A sample that was just taken names all counters of its links, often 144: nothing is added.
        return tuple(
            link
            if not zeros and len(errors) == len(link.errors)
            else structs.replace(link, errors=tuple(errors.items()))
            for link, errors in counted
        )


class _Event(msgspec.Struct, frozen=True):
    at: Moment
    number: Number
    index: Whole | None = None
    bus_id: Kind | None = None
    logged: bool = False


class _Line(msgspec.Struct, frozen=True):
    """A line of `devices.jsonl`."""

    at: Moment
    devices: Annotated[tuple[_Entry, ...], Meta(max_length=MOST_DEVICES)] | None = None
    trouble: Text | None = None
    events: Annotated[tuple[_Event, ...], Meta(max_length=256)] | None = None
    """Events are repeated in later lines, as lines may be thinned out."""
    topology: Topology | None = None
    took: float | None = None
    driver: Annotated[str, Meta(max_length=80)] | None = None
    events_trouble: Text | None = None
    kernel_log_trouble: Text | None = None


_decode_line = line_decoder(_Line)
_read_line = reader(_Line)


def device_sample(line: Mapping[str, Json]) -> DeviceSample | None:
    """One sample that does not refer to earlier ones; None if it has no time."""
    return DeviceReader().read(line)


class DeviceReader:
    """Reads the lines of one host in their order, of a file or as they are sampled. In a file what
    is as before is not repeated. `host`: whose they are."""

    def __init__(self, host: str | None = None) -> None:
        self.host = host
        self._steady: dict[int, tuple[_Entry, tuple[NvLink, ...]]] = {}
        """The last complete entry of each device, and its NVLinks."""
        self._events: dict[XidEvent, None] = {}
        """The newest events, oldest first."""

    def decode(self, line: bytes) -> DeviceSample | None:
        """A line of a file; None where it cannot be read or has no time."""
        return self._sample(_decode_line(line))

    def read(self, line: Mapping[str, Json]) -> DeviceSample | None:
        """A line as parsed JSON; None where it has no time."""
        return self._sample(_read_line(line))

    def _sample(self, line: _Line | None) -> DeviceSample | None:
        if line is None:
            return None
        return DeviceSample(
            at=line.at,
            devices=tuple(map(self._device, line.devices or ())),
            trouble=line.trouble,
            events=tuple(self._new(line.events or ())),
            topology=line.topology and line.topology.checked(),
            took=line.took,
            driver=line.driver,
            events_trouble=line.events_trouble,
            kernel_log_trouble=line.kernel_log_trouble,
            host=self.host,
        )

    def _device(self, entry: _Entry) -> Device:
        steady = self._steady.get(entry.index) if entry.same else None
        if steady is None:
            steady = entry, entry.links()
            if len(self._steady) < MOST_DEVICES or entry.index in self._steady:
                self._steady[entry.index] = steady
        return _device(entry, *steady)

    def _new(self, entries: Iterable[_Event]) -> Iterator[XidEvent]:
        for entry in entries:
            event = XidEvent(entry.at, entry.index, entry.number, entry.bus_id, entry.logged)
            if event not in self._events:
                self._events[event] = None
                if len(self._events) > MOST_HEARD:
                    del self._events[next(iter(self._events))]
                yield event


def _device(entry: _Entry, steady: _Entry, nvlinks: tuple[NvLink, ...]) -> Device:
    processes = entry.processes or ()
    pids = tuple(process.pid for process in processes) if entry.pids is None else entry.pids
    pcie = steady.pcie or entry.pcie
    if pcie is not None:  # what the link carries is never as before
        now = entry.pcie or Pcie()
        pcie = structs.replace(pcie, sent=now.sent, received=now.received)
    return Device(
        index=entry.index,
        name=steady.name,
        uuid=steady.uuid,
        utilization=entry.utilization,
        memory_used=entry.memory_used,
        memory_total=steady.memory_total,
        power_watts=entry.power_watts,
        power_limit_watts=steady.power_limit_watts,
        temperature=entry.temperature,
        sm_clock_mhz=entry.sm_clock_mhz,
        max_sm_clock_mhz=steady.max_sm_clock_mhz,
        clock_reasons=entry.clock_reasons,
        pids=pids,
        trouble=entry.trouble,
        memory_busy=entry.memory_busy,
        fan=entry.fan,
        memory_clock_mhz=entry.memory_clock_mhz,
        bus_id=steady.bus_id,
        numa_node=steady.numa_node,
        cores=steady.cores,
        pcie=pcie,
        nvlinks=nvlinks,
        nvlink_sent=entry.nvlink_sent,
        nvlink_received=entry.nvlink_received,
        ecc=steady.ecc,
        mig=steady.mig,
        instances=steady.instances or (),
        unified_memory=steady.unified_memory is True,
        processes=processes,
        vendor=steady.vendor or "nvidia",
    )
