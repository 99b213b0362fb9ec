"""The GPUs. The labels are dcgm-exporter's, so that the two can be joined; the names are ours."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mgpu_doctor.case.gpu import Device, DeviceSample
from mgpu_doctor.export.parts import label, put
from mgpu_doctor.export.readings import GAUGES, SPLIT_COUNTERS, SPLIT_GAUGES

LABELS = ("gpu", "UUID", "Hostname", "modelName")


def families(sample: DeviceSample | None, host: str) -> Iterator[Metric]:
    """Those of the GPUs of this `host`."""
    devices = [(one, labels(one, host)) for one in sample.devices] if sample else []
    for name, told, read in GAUGES:
        gauge = GaugeMetricFamily(name, told, labels=LABELS)
        for device, common in devices:
            put(gauge, common, read(device))
        yield gauge
    heard = GaugeMetricFamily(
        "mgpu_gpu_xids_heard", "0: the driver does not let XIDs be heard.", labels=("Hostname",)
    )
    if sample and devices:
        put(heard, (label(host),), sample.events_trouble is None)
    yield heard
    for kind, table in ((GaugeMetricFamily, SPLIT_GAUGES), (CounterMetricFamily, SPLIT_COUNTERS)):
        for name, told, by, split in table:
            family = kind(name, told, labels=(*LABELS, by))
            for device, common in devices:
                for part, value in split(device).items():
                    put(family, (*common, label(part)), value)
            yield family


def labels(device: Device, host: str) -> tuple[str, str, str, str]:
    """The values of `LABELS`."""
    return str(device.index), label(device.uuid), label(host), label(device.name)
