"""Metrics of ranks: progress, step time by phase, state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import State
from mgpu_doctor.export.gpu_metrics import LABELS as GPU_LABELS
from mgpu_doctor.export.gpu_metrics import labels as gpu_labels
from mgpu_doctor.export.job_metrics import label, put
from mgpu_doctor.findings import Diagnosis, RankSummary

LABELS = ("rank", "host")
MOST_RANKS = 1024
"""The most ranks. In a larger job, culprits of findings come first, then the lowest ranks."""
NOT_WORK = ("wait", "communication")


def rank_families(
    diagnosis: Diagnosis, hosts: Mapping[str, HostSample], devices: Mapping[str, DeviceSample]
) -> Iterator[Metric]:
    """Returns the families of ranks. `hosts`, `devices`: name of a host -> its samples; memory and
    GPUs are known only for ranks of these."""
    rank_summaries = _summaries(diagnosis)
    yield _states(diagnosis.ranks)
    yield GaugeMetricFamily(
        "mgpu_ranks_left_out",
        f"Ranks without series of their own: beyond {MOST_RANKS}, or with an unknown number.",
        value=len(diagnosis.ranks) - len(rank_summaries),
    )
    yield from _steps(rank_summaries)
    yield from _timing(rank_summaries)
    yield _state(rank_summaries)
    yield _resident(rank_summaries, hosts)
    yield _allocated(diagnosis, rank_summaries)
    yield _placed(rank_summaries, devices)


def _summaries(diagnosis: Diagnosis) -> list[RankSummary]:
    blamed = {culprit.rank for finding in diagnosis.findings for culprit in finding.culprits}
    known = {rank.rank: rank for rank in reversed(diagnosis.ranks) if rank.rank is not None}
    first = sorted(known, key=lambda number: (number not in blamed, number))[:MOST_RANKS]
    return [known[number] for number in sorted(first)]


def _labels(rank: RankSummary) -> tuple[str, str]:
    return str(rank.rank), label(rank.host)


def _states(ranks: Sequence[RankSummary]) -> Metric:
    gauge = GaugeMetricFamily("mgpu_ranks", "Ranks of the job by state.", labels=("state",))
    many = Counter(rank.state for rank in ranks)
    for state in State:
        gauge.add_metric((state.value,), many[state.value])
    return gauge


def _steps(ranks: Sequence[RankSummary]) -> Iterator[Metric]:
    done = CounterMetricFamily("mgpu_steps", "Steps that the rank completed.", labels=LABELS)
    whole = GaugeMetricFamily("mgpu_step_seconds", "Median time of a step.", labels=LABELS)
    own = GaugeMetricFamily(
        "mgpu_step_own_seconds",
        "Median of the rank's own work in a step: all phases except wait and communication.",
        labels=LABELS,
    )
    phase = GaugeMetricFamily(
        "mgpu_step_phase_seconds", "Median time of a step by phase.", labels=(*LABELS, "phase")
    )
    for rank in ranks:
        labels = _labels(rank)
        put(done, labels, None if rank.last_step is None else rank.last_step + 1)
        put(whole, labels, rank.step_seconds_median)
        work = [
            value
            for name, value in rank.phases.items()
            if name not in NOT_WORK and value is not None
        ]
        put(own, labels, sum(work) if work and rank.unseen_waits is None else None)
        for name, value in rank.phases.items():
            put(phase, (*labels, label(name)), value)
    yield from (done, whole, own, phase)


def _timing(ranks: Sequence[RankSummary]) -> Iterator[Metric]:
    """Returns what measured the phases, and how far hosts are ahead of their GPUs."""
    clock = GaugeMetricFamily(
        "mgpu_rank_clock", "1 for the clock of the rank's phases.", labels=(*LABELS, "clock")
    )
    unseen = GaugeMetricFamily(
        "mgpu_rank_unseen_waits",
        "1 for the reason for which the rank's own work and wait are unknown.",
        labels=(*LABELS, "reason"),
    )
    least = GaugeMetricFamily(
        "mgpu_rank_run_ahead_seconds",
        "Median time that the host was ahead of its GPU when backward began, at least.",
        labels=LABELS,
    )
    most = GaugeMetricFamily(
        "mgpu_rank_run_ahead_most_seconds", "The same, at most.", labels=LABELS
    )
    bound = GaugeMetricFamily(
        "mgpu_rank_bound", "1 for what the rank's step time depends on.", labels=(*LABELS, "by")
    )
    waiting = GaugeMetricFamily(
        "mgpu_rank_busy_waiting_ratio",
        "Share of the time its GPU is busy in which it waits for other ranks, at least.",
        labels=(*LABELS, "waits_for"),
    )
    for rank in ranks:
        labels = _labels(rank)
        if rank.clock is not None:
            clock.add_metric((*labels, rank.clock.value), 1)
        if rank.unseen_waits is not None:
            unseen.add_metric((*labels, rank.unseen_waits.value), 1)
        if rank.run_ahead is not None:
            put(least, labels, rank.run_ahead.least)
            put(most, labels, rank.run_ahead.most)
        if rank.bound_by is not None:
            bound.add_metric((*labels, rank.bound_by.value), 1)
        if rank.busy_waiting is not None:
            put(waiting, (*labels, label(rank.busy_waiting.waits_for)), rank.busy_waiting.waiting)
    yield from (clock, unseen, least, most, bound, waiting)


def _state(ranks: Sequence[RankSummary]) -> Metric:
    gauge = GaugeMetricFamily(
        "mgpu_rank_state", "1 for the rank's current state.", labels=(*LABELS, "state")
    )
    for rank in ranks:
        gauge.add_metric((*_labels(rank), label(rank.state)), 1)
    return gauge


def _resident(ranks: Sequence[RankSummary], hosts: Mapping[str, HostSample]) -> Metric:
    gauge = GaugeMetricFamily(
        "mgpu_rank_resident_bytes", "Host memory of the rank's process.", labels=LABELS
    )
    for rank in ranks:
        processes = hosts[rank.host].processes if rank.host in hosts else {}
        if rank.pid is not None and rank.pid in processes:
            put(gauge, _labels(rank), processes[rank.pid][1])
    return gauge


def _allocated(diagnosis: Diagnosis, ranks: Sequence[RankSummary]) -> Metric:
    """Returns the bytes that the framework had allocated at the end of the step; a 0 in a record
    means unknown."""
    gauge = GaugeMetricFamily(
        "mgpu_rank_device_bytes",
        "Device memory that the framework had allocated at the end of the last step.",
        labels=LABELS,
    )
    steps = {rank.rank: rank.steps for rank in diagnosis.case.ranks}
    for rank in ranks:
        records = steps.get(rank.rank)
        if records is not None and len(records) and "device_bytes" in (records.dtype.names or ()):
            put(gauge, _labels(rank), int(records["device_bytes"][-1]) or None)
    return gauge


def _placed(ranks: Sequence[RankSummary], devices: Mapping[str, DeviceSample]) -> Metric:
    info = InfoMetricFamily(
        "mgpu_rank_gpu", "Which rank runs on which GPU.", labels=(*LABELS, *GPU_LABELS)
    )
    by_process = {(rank.host, rank.pid): rank for rank in ranks if rank.pid is not None}
    for host, sample in devices.items():
        for device in sample.devices:
            for pid in device.pids:
                if (host, pid) in by_process:
                    labels = _labels(by_process[host, pid]), gpu_labels(device, host)
                    info.add_metric((*labels[0], *labels[1]), {})
    return info
