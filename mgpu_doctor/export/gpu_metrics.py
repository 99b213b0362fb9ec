"""Metrics of GPUs, with dcgm-exporter's labels so that both can be joined, and XID counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mgpu_doctor.case.device_samples import Device, DeviceSample, Ecc, Pcie
from mgpu_doctor.export.job_metrics import label, put

MHZ = 1e6
REASONS = (
    "idle",
    "power_cap",
    "sw_thermal",
    "hw_thermal",
    "hw_slowdown",
    "hw_power_brake",
    "clocks_setting",
    "sync_boost",
    "display",
)
"""The values of `Device.clock_reasons`."""
LOST = ("is lost", "requires restart", "requires reset")
"""NVML's error texts for a GPU that fell off the bus or must be reset."""


def _hertz(mhz: float | None) -> float | None:
    return None if mhz is None else mhz * MHZ


def _silent(device: Device) -> bool:
    read = (device.utilization, device.memory_used, device.power_watts, device.temperature)
    return all(value is None for value in read)


def _lost(device: Device) -> bool | None:
    trouble = (device.trouble or "").lower()
    if any(words in trouble for words in LOST):
        return True
    return False if "not supported" in trouble or not _silent(device) else None


def _links(device: Device) -> dict[str, float | None]:
    known = [link.up for link in device.nvlinks if link.up is not None]
    return {"up": known.count(True), "down": known.count(False)} if known else {}


def _link_errors(device: Device) -> dict[str, float | None]:
    total: Counter[str] = Counter()
    for link in device.nvlinks:
        total.update(dict(link.errors))
    return dict(total)


def _pcie(device: Device) -> Pcie:
    return device.pcie or Pcie()


def _ecc(device: Device) -> Ecc:
    return device.ecc or Ecc()


def _limits(device: Device) -> dict[str, float | None]:
    reasons = device.clock_reasons
    return {} if reasons is None else {reason: reason in reasons for reason in REASONS}


Read = Callable[[Device], float | None]

GAUGES: tuple[tuple[str, str, Read], ...] = (
    (
        "mgpu_gpu_utilization_ratio",
        "Share of time in which a kernel was running, including kernels that wait in a collective.",
        lambda gpu: gpu.utilization,
    ),
    (
        "mgpu_gpu_memory_busy_ratio",
        "Share of time in which device memory was read or written.",
        lambda gpu: gpu.memory_busy,
    ),
    ("mgpu_gpu_memory_used_bytes", "Device memory in use.", lambda gpu: gpu.memory_used),
    ("mgpu_gpu_memory_size_bytes", "Total device memory.", lambda gpu: gpu.memory_total),
    ("mgpu_gpu_power_watts", "Power drawn.", lambda gpu: gpu.power_watts),
    ("mgpu_gpu_power_limit_watts", "Power limit in force.", lambda gpu: gpu.power_limit_watts),
    ("mgpu_gpu_temperature_celsius", "Temperature of the GPU.", lambda gpu: gpu.temperature),
    ("mgpu_gpu_fan_ratio", "Fan speed as a share of its maximum.", lambda gpu: gpu.fan),
    ("mgpu_gpu_sm_clock_hertz", "Clock of the cores.", lambda gpu: _hertz(gpu.sm_clock_mhz)),
    (
        "mgpu_gpu_sm_clock_most_hertz",
        "Maximum clock of the cores.",
        lambda gpu: _hertz(gpu.max_sm_clock_mhz),
    ),
    (
        "mgpu_gpu_memory_clock_hertz",
        "Clock of the device memory.",
        lambda gpu: _hertz(gpu.memory_clock_mhz),
    ),
    (
        "mgpu_gpu_pcie_generation",
        "Current PCIe generation of the link; idle links drop to 1.",
        lambda gpu: _pcie(gpu).generation,
    ),
    (
        "mgpu_gpu_pcie_generation_most",
        "Maximum PCIe generation of GPU and slot.",
        lambda gpu: _pcie(gpu).generation_most,
    ),
    (
        "mgpu_gpu_pcie_width_lanes",
        "PCIe lanes in use.",
        lambda gpu: _pcie(gpu).width,
    ),
    (
        "mgpu_gpu_pcie_width_most_lanes",
        "Maximum PCIe lanes of GPU and slot.",
        lambda gpu: _pcie(gpu).width_most,
    ),
    (
        "mgpu_gpu_remapped_rows",
        "Memory rows remapped (before Ampere: pages retired) for uncorrectable errors.",
        lambda gpu: _ecc(gpu).remapped,
    ),
    (
        "mgpu_gpu_remap_pending",
        "1: a remap is pending until the GPU is reset.",
        lambda gpu: _ecc(gpu).pending,
    ),
    (
        "mgpu_gpu_remap_failed",
        "1: a remap failed, no spare rows are left.",
        lambda gpu: _ecc(gpu).failed,
    ),
    (
        "mgpu_gpu_readable",
        "0: the GPU could not be read.",
        lambda gpu: not _silent(gpu),
    ),
    ("mgpu_gpu_lost", "1: the driver reports the GPU as lost.", _lost),
)

Split = Callable[[Device], Mapping[str, float | None]]

SPLIT_GAUGES: tuple[tuple[str, str, str, Split], ...] = (
    (
        "mgpu_gpu_clock_limited",
        "1: this keeps the clock below its maximum.",
        "reason",
        lambda gpu: (
            {}
            if gpu.clock_reasons is None
            else {reason: reason in gpu.clock_reasons for reason in REASONS}
        ),
    ),
    (
        "mgpu_gpu_pcie_bytes_per_second",
        "Traffic on the PCIe link; sent: from the GPU to the host.",
        "direction",
        lambda gpu: {"sent": _pcie(gpu).sent, "received": _pcie(gpu).received},
    ),
    (
        "mgpu_gpu_nvlink_bytes_per_second",
        "Traffic on all NVLinks.",
        "direction",
        lambda gpu: {"sent": gpu.nvlink_sent, "received": gpu.nvlink_received},
    ),
    ("mgpu_gpu_nvlinks", "NVLinks by state.", "state", _links),
)

SPLIT_COUNTERS: tuple[tuple[str, str, str, Split], ...] = (
    (
        "mgpu_gpu_ecc_errors",
        "Memory errors since the driver was loaded.",
        "kind",
        lambda gpu: (
            {"corrected": gpu.ecc.corrected, "uncorrected": gpu.ecc.uncorrected} if gpu.ecc else {}
        ),
    ),
    (
        "mgpu_gpu_ecc_lifetime_errors",
        "Memory errors since the GPU was made.",
        "kind",
        lambda gpu: (
            {"corrected": gpu.ecc.corrected_ever, "uncorrected": gpu.ecc.uncorrected_ever}
            if gpu.ecc
            else {}
        ),
    ),
    (
        "mgpu_gpu_nvlink_errors",
        "Errors of all NVLinks since the driver was loaded.",
        "kind",
        _link_errors,
    ),
    (
        "mgpu_gpu_pcie_errors",
        "PCIe errors since the driver was loaded.",
        "kind",
        lambda gpu: {"replay": _pcie(gpu).replays},
    ),
)

LABELS = ("gpu", "UUID", "Hostname", "modelName")


def gpu_families(sample: DeviceSample | None, host: str) -> Iterator[Metric]:
    """Returns the families of the GPUs of this `host`."""
    devices = [(device, labels(device, host)) for device in sample.devices] if sample else []
    for name, help_text, read in GAUGES:
        gauge = GaugeMetricFamily(name, help_text, labels=LABELS)
        for device, common in devices:
            put(gauge, common, read(device))
        yield gauge
    listened = GaugeMetricFamily(
        "mgpu_gpu_xids_heard", "0: the driver does not report XIDs.", labels=("Hostname",)
    )
    if sample and devices:
        put(listened, (label(host),), sample.events_trouble is None)
    yield listened
    for kind, table in ((GaugeMetricFamily, SPLIT_GAUGES), (CounterMetricFamily, SPLIT_COUNTERS)):
        for name, help_text, by, split in table:
            family = kind(name, help_text, labels=(*LABELS, by))
            for device, common in devices:
                for part, value in split(device).items():
                    put(family, (*common, label(part)), value)
            yield family


def labels(device: Device, host: str) -> tuple[str, str, str, str]:
    """Returns the values of `LABELS`."""
    return str(device.index), label(device.uuid), label(host), label(device.name)


MOST_SERIES = 1024


class Xids:
    """Counts XIDs by GPU. Each sample must be added once, in order."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[tuple[str, ...], int]] = Counter()

    def count(self, sample: DeviceSample | None, host: str) -> None:
        """Adds the events of `sample`. An unnamed GPU gets empty labels."""
        if sample is None:
            return
        known = {device.index: labels(device, host) for device in sample.devices}
        for event in sample.events:
            unnamed = ("" if event.index is None else str(event.index), "", label(host), "")
            key = (
                (unnamed if event.index is None else known.get(event.index, unnamed)),
                event.number,
            )
            if key in self._counts or len(self._counts) < MOST_SERIES:
                self._counts[key] += 1

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(
            "mgpu_gpu_xid_events",
            "XIDs that the driver reported since this exporter was started.",
            labels=(*LABELS, "xid"),
        )
        for (common, number), many in self._counts.items():
            family.add_metric((*common, str(number)), many)
        return family
