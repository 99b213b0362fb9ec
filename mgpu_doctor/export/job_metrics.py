"""Metrics of the job, its findings, the host and the exporter itself.

An unknown value has no series; foreign text becomes one printable label.
"""

from __future__ import annotations

import math
import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from mgpu_doctor import __version__
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export.sampling import Sample, Sampler
from mgpu_doctor.findings import Culprit, Diagnosis, Finding
from mgpu_doctor.live.frame import Progress
from mgpu_doctor.report import text

MOST_LABEL = 200
"""The most characters of a label's value; longer ones lose their middle."""


class Family(Protocol):
    """A family of gauges or counters."""

    def add_metric(self, labels: Sequence[str], value: float, /) -> None: ...


@lru_cache(4096)
def label(value: str | int | None) -> str:
    """Returns `value` on one line; in Prometheus, an empty label means none."""
    return "" if value is None else text.cut(text.line(str(value)), MOST_LABEL)


def put(family: Family, labels: Sequence[str], value: float | None) -> None:
    """Adds one series, unless its value is unknown."""
    if value is not None and math.isfinite(value):
        family.add_metric(labels, value)


def distinct(families: Iterable[Metric]) -> list[Metric]:
    """Returns the families that have series, without duplicates: a scraper rejects a page with
    duplicate series."""
    kept = []
    for family in families:
        seen = {
            (sample.name, *sample.labels.values()): sample for sample in reversed(family.samples)
        }
        family.samples = list(reversed(seen.values()))
        if family.samples:
            kept.append(family)
    return kept


def host_families(sample: HostSample | None, host: str) -> Iterator[Metric]:
    if sample is None:
        return
    labels = (label(host),)
    cpu = None if sample.cpu_percent is None else sample.cpu_percent / 100
    for name, help_text, value in (
        ("mgpu_host_cpu_ratio", "Use of all cores.", cpu),
        ("mgpu_host_cores", "Cores that may be used.", sample.cores),
        ("mgpu_host_load1", "Load average over a minute.", sample.load1),
        ("mgpu_host_memory_used_bytes", "Memory in use.", sample.memory_used),
        ("mgpu_host_memory_size_bytes", "Memory that may be used.", sample.memory_total),
    ):
        gauge = GaugeMetricFamily(name, help_text, labels=("host",))
        put(gauge, labels, value)
        yield gauge
    pressure = CounterMetricFamily(
        "mgpu_host_pressure_seconds",
        "Time in which some task was stalled waiting for it.",
        labels=("host", "resource"),
    )
    for resource, seconds in sample.pressure.items():
        put(pressure, (*labels, label(resource)), seconds)
    yield pressure


MOST_FINDINGS = 128
MOST_CULPRITS = 64
"""The most series of one finding."""


def job_families(diagnosis: Diagnosis, going: Progress) -> Iterator[Metric]:
    job = diagnosis.case.job
    yield InfoMetricFamily(
        "mgpu_job",
        "The observed job. Without its command, because commands may contain secrets.",
        value={
            "id": label(job.id),
            "framework": label(job.framework),
            "strategy": label(job.strategy),
            "launcher": label(job.launcher),
        },
    )
    outcome = StateSetMetricFamily(
        "mgpu_job_outcome", "State of the job, or how it ended.", labels=()
    )
    outcome.add_metric((), {outcome.value: outcome is job.outcome for outcome in Outcome})
    yield outcome
    for name, help_text, value in (
        ("mgpu_job_world_size", "Ranks that the job should have.", job.world_size),
        ("mgpu_job_start_time_seconds", "Start time, since the epoch.", job.started),
        ("mgpu_job_steps_per_second", "Recent steps per second.", going.rate),
        ("mgpu_job_samples_per_second", "Recent samples per second of all ranks.", going.samples),
        ("mgpu_job_tokens_per_second", "Recent tokens per second of all ranks.", going.tokens),
        ("mgpu_job_loss", "Recent mean loss; +Inf: it is not a number.", going.loss),
        ("mgpu_job_probe_ratio", "Share of a step that the probe takes.", going.probe),
        ("mgpu_job_step_seconds", "Mean time of a step.", diagnosis.step_seconds),
        (
            "mgpu_job_ideal_step_seconds",
            "The same if every rank always worked like the median rank.",
            diagnosis.ideal_step_seconds,
        ),
        (
            "mgpu_job_waste_ratio",
            "Share of the time spent waiting for the slowest rank.",
            diagnosis.waste_fraction,
        ),
        (
            "mgpu_job_load_balance_ratio",
            "Mean over greatest own work of the ranks (POP); 1 is even.",
            diagnosis.load_balance,
        ),
        (
            "mgpu_job_communication_efficiency_ratio",
            "Greatest own work over the time of the step (POP).",
            diagnosis.communication_efficiency,
        ),
        (
            "mgpu_job_coverage_ratio",
            "Share of the ranks' time that measured phases explain.",
            diagnosis.coverage,
        ),
    ):
        gauge = GaugeMetricFamily(name, help_text, labels=())
        put(gauge, (), value)
        yield gauge
    yield from _findings(diagnosis.findings)


def _findings(findings: Sequence[Finding]) -> Iterator[Metric]:
    active = GaugeMetricFamily(
        "mgpu_finding_active",
        "1 for each culprit of a finding; the series ends when the finding is gone.",
        labels=("rule", "severity", "rank", "host", "device"),
    )
    cost = GaugeMetricFamily(
        "mgpu_finding_cost_ratio",
        "Share of step time that fixing it would save; the maximum of several findings of a rule.",
        labels=("rule",),
    )
    dearest: dict[str, float] = {}
    for finding in findings[:MOST_FINDINGS]:
        rule = label(finding.code)
        for culprit in islice(finding.culprits or (Culprit(None),), MOST_CULPRITS):
            names = (culprit.rank, culprit.host, culprit.device)
            active.add_metric((rule, finding.severity.value, *map(label, names)), 1)
        if finding.cost.step_fraction is not None:
            dearest[rule] = max(dearest.get(rule, 0.0), finding.cost.step_fraction)
    for rule, share in dearest.items():
        put(cost, (rule,), share)
    yield from (active, cost)


class Answer(str, Enum):
    """The kinds of answers to a request."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"
    """A wrong host, method, path, or no HTTP."""
    FAILED = "failed"
    """No sample was available."""
    BUSY = "busy"
    """Too many requests at once."""
    BROKEN = "broken"
    """The client was too slow, went away, or had to make room."""


class Answers:
    """Counts answers; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Answer] = Counter()

    def count(self, answer: Answer) -> None:
        with self._lock:
            self._counts[answer] += 1

    def family(self) -> Metric:
        family = CounterMetricFamily(
            "mgpu_exporter_requests",
            "Requests answered so far, without this one.",
            labels=("answer",),
        )
        with self._lock:
            for answer in Answer:
                family.add_metric((answer.value,), self._counts[answer])
        return family


def exporter_families(sampler: Sampler, sample: Sample, answers: Answers) -> Iterator[Metric]:
    for name, help_text, value in (
        ("mgpu_exporter_sample_seconds", "Duration of making the sample.", sample.took),
        ("mgpu_exporter_sample_age_seconds", "Age of the sample.", sampler.age(sample)),
        (
            "mgpu_exporter_sample_late_seconds",
            "Time by which the sample is older than the interval allows.",
            sampler.late(sample),
        ),
    ):
        yield GaugeMetricFamily(name, help_text, value=value)
    yield answers.family()
    yield InfoMetricFamily(
        "mgpu_exporter_build",
        "The exporter's version.",
        value={"version": __version__, "python": platform.python_version()},
    )
