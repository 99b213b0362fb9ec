"""The GPUs of a host at one moment. Every field may be unknown (None)."""

from __future__ import annotations

from dataclasses import dataclass

from mgpu_doctor.case.fact import Fact


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pcie(Fact):
    """The link to the host. Generation and width (lanes) change with load: an idle link sleeps."""

    generation: int | None = None
    width: int | None = None
    generation_most: int | None = None
    """What device and slot can do together."""
    width_most: int | None = None
    sent: float | None = None
    """Bytes a second, from the GPU to the host."""
    received: float | None = None
    replays: int | None = None
    """Counter since the driver was loaded."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class NvLink(Fact):
    """One link. Errors are counters since the driver was loaded, by kind: `crc_flit`, `crc_data`,
    `replay`, `recovery`, `ecc`."""

    link: int
    up: bool | None = None
    remote: str | None = None
    """`gpu`, `switch` or `cpu`."""
    errors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ecc(Fact):
    """Memory errors that the hardware found. `volatile`: since the driver was loaded."""

    corrected: int | None = None
    uncorrected: int | None = None
    corrected_ever: int | None = None
    uncorrected_ever: int | None = None
    remapped: int | None = None
    """Rows remapped, or pages retired before Ampere, for uncorrectable errors."""
    pending: bool | None = None
    """A remap or retirement waits for a reset of the GPU."""
    failed: bool | None = None
    """A remap failed: no spare rows are left."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceProcess(Fact):
    """A process on the device. `pid`: as the host numbers it, also inside a container."""

    pid: int
    memory: int | None = None
    """Bytes."""
    kind: str = "compute"
    """`compute`, `graphics` or `mps`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MigInstance(Fact):
    """A part of a GPU in MIG mode: NVML tells its memory, no utilization of its own."""

    uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class XidEvent(Fact):
    """An XID that the driver reported, to who listened or in the kernel's log."""

    at: float
    """Seconds since the epoch."""
    index: int | None
    """The GPU; None: nobody said, or it is not listed."""
    number: int
    bus_id: str | None = None
    """Its PCI address, where the kernel's log told: `0000:3b:00`."""
    logged: bool = False
    """The kernel's log told it, not the driver's events."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Topology(Fact):
    """How the GPUs of a host hang together; it never changes while the host is up."""

    levels: tuple[tuple[str, ...], ...] = ()
    """`levels[i][j]` between GPUs i and j: `SELF`, `NVL` (NVLink), `PIX`, `PXB`, `PHB`, `NODE`,
    `SYS`, or `?`; the letters of `nvidia-smi topo -m`."""
    peer: tuple[tuple[str, ...], ...] = ()
    """Whether i reaches j's memory by itself: `OK`, or NVML's reason (`CNS`, `GNS`, `TNS`, `DR`,
    `NS`), or `?`."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Device(Fact):
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
    """As the host numbers them, also inside a container."""
    trouble: str | None = None
    """Why nothing or not everything could be read, e.g. `GPU is lost`."""
    memory_busy: float | None = None
    """0..1: share of time in which device memory was read or written."""
    fan: float | None = None
    """0..1 of the speed that is meant to be its most."""
    memory_clock_mhz: float | None = None
    bus_id: str | None = None
    """PCI address, `0000:1b:00.0`, as the kernel's XID lines and sysfs write it."""
    numa_node: int | None = None
    cores: str | None = None
    """CPU cores near the device, as the kernel writes a list: `0-31,64-95`."""
    pcie: Pcie | None = None
    nvlinks: tuple[NvLink, ...] = ()
    nvlink_sent: float | None = None
    """Bytes a second, all links together."""
    nvlink_received: float | None = None
    ecc: Ecc | None = None
    mig: bool | None = None
    """In MIG mode; its parts are `instances`."""
    instances: tuple[MigInstance, ...] = ()
    unified_memory: bool = False
    """The device has no memory of its own (GB10, Jetson): the host's is used."""
    processes: tuple[DeviceProcess, ...] = ()
    vendor: str = "nvidia"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeviceSample(Fact):
    at: float
    devices: tuple[Device, ...]
    trouble: str | None = None
    """Why there are no devices at all, e.g. no NVIDIA driver."""
    events: tuple[XidEvent, ...] = ()
    """Those that came since the sample before."""
    topology: Topology | None = None
    """In the first sample of a recording, and now and then."""
    took: float | None = None
    """Seconds that reading all devices took."""
    driver: str | None = None
    """The driver's version."""
    events_trouble: str | None = None
    """Why XIDs are not heard from the driver."""
    kernel_log_trouble: str | None = None
    """Why they are not read from the kernel's log; None, too, where nobody tried."""
    host: str | None = None
    """Whose devices they are; None: not known."""


CLOCK_REASONS = {
    "hw_thermal": "hardware thermal slowdown",
    "sw_thermal": "thermal slowdown by the driver",
    "hw_power_brake": "the power supply's brake",
    "hw_slowdown": "hardware slowdown",
    "power_cap": "power cap",
    "clocks_setting": "a clock that somebody has set",
    "sync_boost": "another GPU of its sync boost group",
}
"""NVML's clock event reasons that slow a device down, in words, the most telling first."""
HARD_CLOCK_REASONS = ("hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown")
"""Those that a healthy device under load does not give; a power cap is usual under full load."""
