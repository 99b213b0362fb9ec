"""Renders a frame of this machine, or of the hosts of a job, as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    CONTENT_TYPE_LATEST,
    generate_latest,
)

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export import gpu_metrics, job_metrics, rank_metrics
from mgpu_doctor.export.gpu_metrics import Xids
from mgpu_doctor.export.job_metrics import distinct
from mgpu_doctor.live.frame import Frame

LATE = 30.0
"""Seconds after which a sample of another host is no longer exported. A choice."""
CONTENT_TYPE = CONTENT_TYPE_LATEST
END = b"# EOF\n"


class _Once:
    """Adapts families to the collector interface that the library requires."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def families(frame: Frame, here: str) -> Iterator[Metric]:
    """Returns all families of a frame. `here`: the name of this host, whose samples have none."""
    devices = list_devices(frame, here)
    hosts = _list_hosts(frame, here)
    yield from merge(gpu_metrics.gpu_families(sample, name) for name, sample in devices.items())
    yield from merge(job_metrics.host_families(sample, name) for name, sample in hosts.items())
    if frame.diagnosis is not None:
        yield from job_metrics.job_families(frame.diagnosis, frame.going)
        yield from rank_metrics.rank_families(frame.diagnosis, hosts, devices)
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


def list_devices(frame: Frame, here: str) -> dict[str, DeviceSample]:
    """Host -> its GPUs."""
    samples = (frame.devices, *frame.elsewhere)
    return {sample.host or here: sample for sample in samples if sample is not None}


def _list_hosts(frame: Frame, here: str) -> dict[str, HostSample]:
    """Host -> its newest sample. A host of the job that has had none for long is left out."""
    hosts = {}
    for sample in frame.diagnosis.case.host_samples if frame.diagnosis else ():
        if sample.host is not None and frame.at - sample.at <= LATE:
            hosts[sample.host] = sample
    if frame.host is not None:
        hosts[frame.host.host or here] = frame.host
    return hosts


def merge(made: Iterable[Iterable[Metric]]) -> list[Metric]:
    """Returns families of several hosts as one of each name."""
    merged: dict[str, Metric] = {}
    for family in chain.from_iterable(made):
        first = merged.setdefault(family.name, family)
        if first is not family:
            first.samples += family.samples
    return list(merged.values())


def lines(made: Iterable[Metric]) -> bytes:
    """Returns the families as text, without the end mark (`END`)."""
    # Our names need no escaping, and checking each letter, as by default, takes half of the time.
    whole = _Once(distinct(made))
    written: bytes = generate_latest(whole, ALLOWUTF8)  # type: ignore[no-untyped-call]
    return written.removesuffix(END)


class Source(Protocol):
    """The part of `LiveJobs` and `HostJobs` (`mgpu_doctor.live`) used here."""

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
        self._counted: dict[str, float] = {}
        """Host -> time of its newest sample whose XIDs are counted."""

    def text(self) -> bytes:
        """Returns a page. If the job is over and another one runs here, it shows the other one."""
        frame = self._source.frame(0)
        self._count_xids(frame)
        if not self._fixed and _over(frame) and frame.others:
            self._source.next_job()
            frame = self._source.frame(0)
            self._count_xids(frame)
        return lines([*families(frame, self._here), self._xids.family()])

    def _count_xids(self, frame: Frame) -> None:
        """Counts the events of each sample once. Of other hosts, several samples may have arrived
        since the last frame, or none."""
        case = frame.diagnosis.case if frame.diagnosis else None
        for name, newest in list_devices(frame, self._here).items():
            if newest.host is None:
                self._xids.count(newest, name)
                continue
            since = self._counted.get(name)
            known = case.device_samples if case is not None and since is not None else ()
            of_host = [sample for sample in known if sample.host == name] or [newest]
            for sample in of_host:
                if since is None or since < sample.at <= newest.at:
                    self._xids.count(sample, name)
            self._counted[name] = newest.at


def _over(frame: Frame) -> bool:
    diagnosis = frame.diagnosis
    if diagnosis is None:
        return False
    job = diagnosis.case.job
    return job.ended is not None or job.outcome not in (Outcome.RUNNING, Outcome.HUNG)
