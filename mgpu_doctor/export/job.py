"""The job as a whole, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from prometheus_client.core import (
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.export.parts import label, put
from mgpu_doctor.findings import Culprit, Diagnosis, Finding
from mgpu_doctor.live.frame import Going

MOST_FINDINGS = 128
MOST_CULPRITS = 64
"""Series of one finding."""


def families(diagnosis: Diagnosis, going: Going) -> Iterator[Metric]:
    job = diagnosis.case.job
    yield InfoMetricFamily(
        "mgpu_job",
        "The job that is watched. Its command is not told: commands hold secrets.",
        value={
            "id": label(job.id),
            "framework": label(job.framework),
            "strategy": label(job.strategy),
            "launcher": label(job.launcher),
        },
    )
    outcome = StateSetMetricFamily("mgpu_job_outcome", "How the job stands or ended.", labels=())
    outcome.add_metric((), {one.value: one is job.outcome for one in Outcome})
    yield outcome
    for name, told, value in (
        ("mgpu_job_world_size", "Ranks that the job should have.", job.world_size),
        ("mgpu_job_start_time_seconds", "When it began, since the epoch.", job.started),
        ("mgpu_job_steps_per_second", "Steps a second of late.", going.rate),
        ("mgpu_job_samples_per_second", "Samples of all ranks a second, of late.", going.samples),
        ("mgpu_job_tokens_per_second", "Tokens of all ranks a second, of late.", going.tokens),
        ("mgpu_job_loss", "Mean loss of late; +Inf: it is no number.", going.loss),
        ("mgpu_job_probe_ratio", "Share of a step that the probe takes.", going.probe),
        ("mgpu_job_step_seconds", "Time of a step, mean.", diagnosis.step_seconds),
        (
            "mgpu_job_ideal_step_seconds",
            "The same if every rank always worked like the median rank.",
            diagnosis.ideal_step_seconds,
        ),
        (
            "mgpu_job_waste_ratio",
            "Share of the time that goes into waiting for whoever is slowest.",
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
        gauge = GaugeMetricFamily(name, told, labels=())
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
        "Share of step time that mending it would save; of several findings of a rule the most.",
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
