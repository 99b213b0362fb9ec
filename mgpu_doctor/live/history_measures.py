"""The measures of a GPU, a host or a rank that can be drawn over time: source, unit and axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.case.host_samples import HostSample, Resource, Traffic
from mgpu_doctor.formatting import format_bytes, format_number, format_seconds


class Unit(Enum):
    """How a value is written."""

    SHARE = "share"
    WATTS = "W"
    CELSIUS = "°C"
    MEGAHERTZ = "MHz"
    RATE = "bytes/s"
    SECONDS = "s"
    PER_SECOND = "/s"
    PLAIN = ""

    def write(self, value: float) -> str:
        """Returns the value with its unit."""
        if self is Unit.SHARE:
            return f"{100 * value:.0f} %"
        if self is Unit.RATE:
            return f"{format_bytes(value)}/s"
        if self is Unit.SECONDS:
            return format_seconds(value)
        return f"{format_number(value)} {self.value}".replace(" /s", "/s").strip()


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure. `top`: upper end of the axis; None: from the data. `rooted`: the axis begins at
    zero."""

    name: str
    unit: Unit
    top: float | None = None
    rooted: bool = True


UTILIZATION = Measure("utilization", Unit.SHARE, 1.0)
MEMORY = Measure("memory", Unit.SHARE, 1.0)
CPU = Measure("cpu", Unit.SHARE, 1.0)
STEP = Measure("step time", Unit.SECONDS)
OWN = Measure("own work", Unit.SECONDS)
WAIT = Measure("wait", Unit.SECONDS)
INPUT = Measure("input", Unit.SECONDS)
LOSS = Measure("loss", Unit.PLAIN, rooted=False)
STEP_RATE = Measure("steps", Unit.PER_SECOND)
SAMPLE_RATE = Measure("samples of a rank", Unit.PER_SECOND)
TOKEN_RATE = Measure("tokens of a rank", Unit.PER_SECOND)

OF_DEVICE: Mapping[Measure, Callable[[Device], float | None]] = {
    UTILIZATION: lambda device: device.utilization,
    MEMORY: lambda device: _share(device.memory_used, device.memory_total),
    Measure("power", Unit.WATTS): lambda device: device.power_watts,
    Measure("temperature", Unit.CELSIUS, 100.0): lambda device: device.temperature,
    Measure("clock", Unit.MEGAHERTZ): lambda device: device.sm_clock_mhz,
    Measure("memory clock", Unit.MEGAHERTZ): lambda device: device.memory_clock_mhz,
    Measure("memory busy", Unit.SHARE, 1.0): lambda device: device.memory_busy,
    Measure("fan", Unit.SHARE, 1.0): lambda device: device.fan,
    Measure("PCIe sent", Unit.RATE): lambda device: device.pcie.sent if device.pcie else None,
    Measure("PCIe received", Unit.RATE): lambda device: (
        device.pcie.received if device.pcie else None
    ),
    Measure("NVLink sent", Unit.RATE): lambda device: device.nvlink_sent,
    Measure("NVLink received", Unit.RATE): lambda device: device.nvlink_received,
}
OF_ALL_DEVICES = (UTILIZATION, MEMORY)
"""Also collected as the mean over a host's GPUs."""
OF_HOST: Mapping[Measure, Callable[[HostSample], float | None]] = {
    CPU: lambda host_sample: (
        None if host_sample.cpu_percent is None else host_sample.cpu_percent / 100
    ),
    MEMORY: lambda host_sample: _share(host_sample.memory_used, host_sample.memory_total),
    Measure("load", Unit.PLAIN): lambda host_sample: host_sample.load1,
}
PRESSURES: tuple[Resource, ...] = ("cpu", "io", "memory")
OF_PRESSURE = tuple(Measure(f"{name} pressure", Unit.SHARE, 1.0) for name in PRESSURES)
"""Share of the time in which some task was stalled waiting for it."""
OF_TRAFFIC: Mapping[Measure, Traffic] = {
    Measure("disk read", Unit.RATE): "read",
    Measure("disk written", Unit.RATE): "written",
    Measure("network received", Unit.RATE): "received",
    Measure("network sent", Unit.RATE): "sent",
}
OF_COUNTERS = (*OF_PRESSURE, *OF_TRAFFIC)
"""What is known between two samples of a host, by its counters."""
OF_RANK = (STEP, OWN, WAIT, INPUT)
OF_JOB = (LOSS, STEP_RATE, SAMPLE_RATE, TOKEN_RATE)


def _share(used: int | None, total: int | None) -> float | None:
    return used / total if used is not None and total else None
