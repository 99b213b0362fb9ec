"""A frame as OpenMetrics text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    CONTENT_TYPE_LATEST,
    generate_latest,
)

from mgpu_doctor.export import gpus, host, job, ranks
from mgpu_doctor.export.parts import distinct
from mgpu_doctor.live.frame import Frame

CONTENT_TYPE = CONTENT_TYPE_LATEST
END = b"# EOF\n"


class _Once:
    """What the library writes is something that can be collected."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def families(frame: Frame, here: str) -> Iterator[Metric]:
    """All that a frame tells; `here`: the name of this host."""
    yield from gpus.families(frame.devices, here)
    yield from host.families(frame.host, here)
    if frame.diagnosis is not None:
        yield from job.families(frame.diagnosis, frame.going)
        yield from ranks.families(frame.diagnosis, frame.host, frame.devices, here)
        yield GaugeMetricFamily(
            "mgpu_diagnosis_age_seconds",
            "How old the findings are; ranks and steps are newer.",
            value=frame.age,
        )
    yield GaugeMetricFamily(
        "mgpu_jobs_unwatched",
        "Jobs under observation on this host of which this exporter does not tell.",
        value=frame.others,
    )


def lines(made: Iterable[Metric]) -> bytes:
    """The families as text, without the mark of its end (`END`)."""
    # Our names need no escaping; the default looks at each of their letters, in half of the time.
    whole = _Once(distinct(made))
    written: bytes = generate_latest(whole, ALLOWUTF8)  # type: ignore[no-untyped-call]
    return written.removesuffix(END)
