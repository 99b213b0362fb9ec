"""More computing threads than cores: they take turns, and all ranks are slower."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.cost.what_if import saved_if_faster
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.machines.oversubscription import CpuDemand, measure_cpu_demand
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.rank_device import host_stamped
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_count, format_share
from mgpu_doctor.rules.advice import environment
from mgpu_doctor.rules.blame import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import cause_named, decides

QUEUEING = 0.05
OUTSIDE = 0.25
"""Cores used by other processes from which the job is not the only cause of the waiting."""
SOURCE = "scheduler counters of the host (schedstat), sampled after warm-up"


def _oversubscribed(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for one in measure_cpu_demand(measures.case, measures.surroundings):
        if not one.full or one.cores is None:
            continue
        if one.queueing is not None and one.queueing < limits["queueing"]:
            continue
        saved = _saved(measures, one)
        yield Finding(
            code="cpu-oversubscribed",
            severity=severity_of_cost(saved or 0.0) if one.most_threads > 1 else Severity.INFO,
            confidence=0.5 if one.queueing is None else 0.9,
            title=f"{_demand(one)} for {one.cores:g} cores on {one.host}{_waiting(one)}",
            cause=_cause(one),
            culprits=tuple(culprit_of(measures, rank) for rank in sorted(_behind(measures, one))),
            victims=one.ranks,
            evidence=tuple(_evidence(one)),
            since_step=0,
            cost=Cost(
                step_fraction=saved,
                seconds_per_step=None
                if saved is None or measures.step_seconds is None
                else saved * measures.step_seconds,
            ),
            fixes=_fixes(measures, one, saved),
        )


def crowded_out(measures: Measures) -> frozenset[int]:
    """Stragglers that wait for cores which the job's own threads have."""
    found = measure_cpu_demand(measures.case, measures.surroundings)
    return frozenset[int]().union(*(_behind(measures, one) for one in found))


def _behind(measures: Measures, one: CpuDemand) -> frozenset[int]:
    alone = one.outside is None or one.outside < OUTSIDE
    waits = one.queueing is not None and one.queueing >= QUEUEING
    if not (one.full and one.most_threads > 1 and alone and waits):
        return frozenset()
    return frozenset(
        straggler.rank
        for straggler in measures.stragglers or ()
        if straggler.rank in one.ranks
        and decides(cause_named(measures, straggler.rank, "host-contended"))
    )


def _saved(measures: Measures, one: CpuDemand) -> float | None:
    """Share of the step without the time in which main threads stood ready; None: not known, as
    where devices work meanwhile."""
    joined, attribution = measures.joined, measures.attribution
    if one.queueing is None or one.most_threads < 2 or host_stamped(measures.case.ranks):
        return None
    if joined is None or attribution is None:
        return one.queueing
    faster = {
        column: (measures.surroundings.get(rank, UNSEEN).queueing or 0.0)
        * float(np.mean(joined.wall[:, column]))
        for column, rank in enumerate(joined.ranks)
        if rank in one.ranks
    }
    return saved_if_faster(attribution, faster)


def _demand(one: CpuDemand) -> str:
    count = len(one.ranks)
    workers = f" and loader workers busy on {one.workers:.1f} cores" if one.workers >= 0.5 else ""
    each = f" of {count} ranks" if count > 1 else ""
    return f"{format_count(one.threads, 'computing thread')}{each}{workers}"


def _waiting(one: CpuDemand) -> str:
    if one.queueing is None:
        return ""
    return f": each rank waits for a core {format_share(one.queueing)} of the time"


def _cause(one: CpuDemand) -> str:
    told = "The threads take turns on the cores"
    if one.most_threads == 1:
        who = "there are more ranks than cores" if one.alone else "loader workers compute, too"
        return f"{told}: {who}. Each rank has one thread, so no thread setting helps."
    told += ", and the threads of a rank wait for the last of them."
    if one.queueing is None:
        return f"{told} The cost was not measured."
    if one.outside is not None and one.outside >= OUTSIDE:
        told += f" Other processes on this host keep {one.outside:.1f} cores busy, too."
    return told


def _evidence(one: CpuDemand) -> Iterable[Evidence]:
    yield Evidence(
        "computing threads, compared with the cores that they may use",
        one.threads,
        "threads",
        one.cores,
        "process metadata, affinity and control group",
        one.host,
    )
    if one.workers:
        yield Evidence(
            "cores that loader workers use or wait for",
            one.workers,
            "cores",
            None,
            SOURCE,
            one.host,
        )
    if one.queueing is not None:
        yield Evidence(
            "share of time in which a rank's main thread waited for a core",
            one.queueing,
            "fraction",
            QUEUEING,
            SOURCE,
            one.host,
        )
    if one.outside is not None:
        yield Evidence(
            "cores used by other processes than this job", one.outside, "cores", None, SOURCE
        )


def _fixes(measures: Measures, one: CpuDemand, saved: float | None) -> tuple[Fix, ...]:
    count, cores = len(one.ranks), one.cores or 1.0
    wanted = math.ceil(one.threads + one.workers)
    gains = None
    if saved is not None:
        gains = Predicted(
            1 - saved,
            None,
            "measured what-if: the same steps without the time in which main threads waited for a "
            "core; "
            "threads that spin while they wait cost more",
        )
    fitting = max(1, int(cores // count))
    fixes = []
    if one.most_threads > fitting:
        fixes.append(
            Fix(
                "fewer-threads",
                f"Give each rank {format_count(fitting, 'computing thread')} instead of "
                f"{one.most_threads}",
                f"{environment(measures, OMP_NUM_THREADS=fitting)}\n"
                f"or in the script: torch.set_num_threads({fitting})",
                gains,
            )
        )
    if one.workers >= 0.5:
        fixes.append(
            Fix(
                "fewer-workers",
                "Leave cores for the loader's workers",
                "Use fewer workers (`num_workers`), or less work per sample (decode and resize "
                "once, in "
                "advance).",
            )
        )
    if one.most_threads == 1:
        fewer = ", or start fewer ranks here" if one.alone else ""
        fixes.append(
            Fix(
                "more-cores",
                f"Give the job {format_count(wanted, 'core')}{fewer}",
                f"docker --cpus {wanted}, Slurm --cpus-per-task, Kubernetes resources.limits.cpu; "
                f"torchrun --nproc-per-node {max(1, int(cores))}"
                if one.alone
                else f"docker --cpus {wanted}, Slurm --cpus-per-task, Kubernetes "
                "resources.limits.cpu.",
            )
        )
    return tuple(fixes)


RULE = Rule(
    code="cpu-oversubscribed",
    family="slow",
    summary=(
        "The ranks have more computing threads (and busy loader workers) than their host "
        "has cores or CPU quota."
    ),
    measured=(
        "Threads that torch computes with, of all ranks of a host, plus loader workers by "
        "the CPU time that they use, compared with the cores of their affinity or the "
        "quota of their control groups. The effect is the share of time in which a rank's "
        "main thread waited for a core (schedstat, sampled once per second). The cost is "
        "a what-if over the same steps without that time."
    ),
    thresholds=(
        "More threads than cores, and main threads that wait for a core. Warning if steps "
        "without the wait would be 5 % shorter; only info if each rank has one thread, as "
        "no thread setting helps then. Measured with two ranks of two threads each on two "
        "cores: the predicted saving was a third, one thread per rank saved half."
    ),
    fixes=(
        "Use one computing thread per rank (`OMP_NUM_THREADS`) or cores divided by ranks, "
        "fewer busy loader workers, or more cores."
    ),
    examine=_oversubscribed,
    replaces=(
        "straggler-compute",
        "straggler-other",
        "straggler-optimizer",
        "straggler-input",
        "straggler-host",
    ),
    limits=(
        Limit(
            "queueing",
            QUEUEING,
            "fraction",
            "minimum share of time in which a main thread waits for a core (5 % of the time is "
            "what "
            "makes a finding about speed a warning).",
        ),
    ),
)
