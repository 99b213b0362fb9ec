"""The host: what one wants beside the ranks; node_exporter tells the rest."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mgpu_doctor.case.host import HostSample
from mgpu_doctor.export.parts import label, put


def families(sample: HostSample | None, host: str) -> Iterator[Metric]:
    if sample is None:
        return
    labels = (label(host),)
    cpu = None if sample.cpu_percent is None else sample.cpu_percent / 100
    for name, told, value in (
        ("mgpu_host_cpu_ratio", "Use of all cores together.", cpu),
        ("mgpu_host_cores", "Cores that may be used.", sample.cores),
        ("mgpu_host_load1", "Load average over a minute.", sample.load1),
        ("mgpu_host_memory_used_bytes", "Memory in use.", sample.memory_used),
        ("mgpu_host_memory_size_bytes", "Memory that may be used.", sample.memory_total),
    ):
        gauge = GaugeMetricFamily(name, told, labels=("host",))
        put(gauge, labels, value)
        yield gauge
    pressure = CounterMetricFamily(
        "mgpu_host_pressure_seconds",
        "Time in which some task stood still for want of it.",
        labels=("host", "resource"),
    )
    for resource, seconds in sample.pressure.items():
        put(pressure, (*labels, label(resource)), seconds)
    yield pressure
