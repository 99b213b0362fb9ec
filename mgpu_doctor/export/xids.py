"""XID events, counted while the exporter runs: a sample tells those since the one before."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily

from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.export.gpus import LABELS
from mgpu_doctor.export.gpus import labels as labels_of
from mgpu_doctor.export.parts import label

MOST_SERIES = 1024


class Xids:
    """Counts by GPU and XID. Each sample is to be handed over once, in order."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[tuple[str, ...], int]] = Counter()

    def count(self, sample: DeviceSample | None, host: str) -> None:
        """Add the events of `sample`; of an unnamed GPU the labels are empty."""
        if sample is None:
            return
        known = {device.index: labels_of(device, host) for device in sample.devices}
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
