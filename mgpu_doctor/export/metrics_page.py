"""Renders a frame of this machine and the observed job as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    CONTENT_TYPE_LATEST,
    generate_latest,
)

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export import gpu_metrics, job_metrics, rank_metrics
from mgpu_doctor.export.gpu_metrics import Xids
from mgpu_doctor.export.job_metrics import distinct
from mgpu_doctor.live.frame import Frame

CONTENT_TYPE = CONTENT_TYPE_LATEST
END = b"# EOF\n"


class _Once:
    """Adapts families to the collector interface that the library requires."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def families(frame: Frame, here: str) -> Iterator[Metric]:
    """Returns all families of a frame. `here`: the name of this host."""
    yield from gpu_metrics.gpu_families(frame.devices, here)
    yield from job_metrics.host_families(frame.host, here)
    if frame.diagnosis is not None:
        yield from job_metrics.job_families(frame.diagnosis, frame.going)
        yield from rank_metrics.rank_families(frame.diagnosis, frame.host, frame.devices, here)
        yield GaugeMetricFamily(
            "mgpu_diagnosis_age_seconds",
            "Age of the findings; ranks and steps are newer.",
            value=frame.age,
        )
    yield GaugeMetricFamily(
        "mgpu_jobs_unwatched",
        "Observed jobs on this host that this exporter does not report.",
        value=frame.others,
    )


def lines(made: Iterable[Metric]) -> bytes:
    """Returns the families as text, without the end mark (`END`)."""
    # Our names need no escaping, and checking each letter, as by default, takes half of the time.
    whole = _Once(distinct(made))
    written: bytes = generate_latest(whole, ALLOWUTF8)  # type: ignore[no-untyped-call]
    return written.removesuffix(END)


class Source(Protocol):
    """The part of `mgpu_doctor.live.live_jobs.LiveJobs` used here."""

    def frame(self, passed: float, /) -> Frame: ...

    def next_job(self) -> None: ...


class Watching:
    """Makes pages from a source. For one thread. `fixed`: the user named the job, so no other one
    replaces it."""

    def __init__(self, source: Source, here: str, *, fixed: bool) -> None:
        self._source = source
        self._here = here
        self._fixed = fixed
        self._xids = Xids()

    def text(self) -> bytes:
        """Returns a page. If the job is over and another one runs here, it shows the other one."""
        frame = self._source.frame(0)
        self._xids.count(frame.devices, self._here)
        if not self._fixed and _over(frame) and frame.others:
            self._source.next_job()
            frame = self._source.frame(0)
            self._xids.count(frame.devices, self._here)
        return lines([*families(frame, self._here), self._xids.family()])


def _over(frame: Frame) -> bool:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return False
    job = diagnosis.case.job
    return job.ended is not None or job.outcome not in (Outcome.RUNNING, Outcome.HUNG)
