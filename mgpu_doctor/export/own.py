"""What the exporter tells of itself."""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Iterator
from enum import Enum

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from mgpu_doctor import __version__
from mgpu_doctor.export.sampling import Sample, Sampler


class Answer(str, Enum):
    """How a request was answered."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"
    """A wrong host, method, path, or no HTTP."""
    FAILED = "failed"
    """There was no sample."""
    BUSY = "busy"
    """Too many at once."""
    BROKEN = "broken"
    """The client was too slow, went away, or had to make room."""


class Answers:
    """Counts; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Answer] = Counter()

    def count(self, answer: Answer) -> None:
        with self._lock:
            self._counts[answer] += 1

    def family(self) -> Metric:
        family = CounterMetricFamily(
            "mgpu_exporter_requests",
            "Requests answered so far; this one is not among them.",
            labels=("answer",),
        )
        with self._lock:
            for answer in Answer:
                family.add_metric((answer.value,), self._counts[answer])
        return family


def families(sampler: Sampler, sample: Sample, answers: Answers) -> Iterator[Metric]:
    for name, told, value in (
        ("mgpu_exporter_sample_seconds", "How long the sample took to make.", sample.took),
        ("mgpu_exporter_sample_age_seconds", "How old the sample is.", sampler.age(sample)),
        (
            "mgpu_exporter_sample_late_seconds",
            "By how much it is older than the interval allows.",
            sampler.late(sample),
        ),
    ):
        yield GaugeMetricFamily(name, told, value=value)
    yield answers.family()
    yield InfoMetricFamily(
        "mgpu_exporter_build",
        "The exporter's version.",
        value={"version": __version__, "python": platform.python_version()},
    )
