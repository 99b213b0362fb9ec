"""More threads that want to compute than cores: they take turns, and all ranks are slower."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.cost.what_if import saved_if_faster
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.machines.oversubscription import CpuDemand, measure_cpu_demand
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.phase_clock import host_stamped
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_count, format_share
from mgpu_doctor.rules.advice import environment
from mgpu_doctor.rules.blame import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import cause_named, decides

QUEUEING = 0.05
OUTSIDE = 0.25
"""Cores of other work from which the job is not alone to blame for what its threads wait."""
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
    return f": a rank stands ready without a core {format_share(one.queueing)} of the time"


def _cause(one: CpuDemand) -> str:
    told = "What wants to compute takes turns on the cores"
    if one.most_threads == 1:
        who = "the ranks alone are more than the cores" if one.alone else "loader workers compute"
        return f"{told}: {who}, and each rank has one thread, so no setting of threads helps."
    told += ", and the threads of a rank wait for whichever of them runs last."
    if one.queueing is None:
        return f"{told} What that costs was not measured."
    if one.outside is not None and one.outside >= OUTSIDE:
        told += f" Other work of this host keeps {one.outside:.1f} cores busy, too."
    return told


def _evidence(one: CpuDemand) -> Iterable[Evidence]:
    yield Evidence(
        "threads that compute, against the cores that they may use",
        one.threads,
        "threads",
        one.cores,
        "birth certificates, affinity and control group",
        one.host,
    )
    if one.workers:
        yield Evidence(
            "cores' worth of time that loader workers use or stand ready for",
            one.workers,
            "cores",
            None,
            SOURCE,
            one.host,
        )
    if one.queueing is not None:
        yield Evidence(
            "share of time in which a rank's main thread stood ready without a core",
            one.queueing,
            "fraction",
            QUEUEING,
            SOURCE,
            one.host,
        )
    if one.outside is not None:
        yield Evidence(
            "cores busy with other things than this job", one.outside, "cores", None, SOURCE
        )


def _fixes(measures: Measures, one: CpuDemand, saved: float | None) -> tuple[Fix, ...]:
    count, cores = len(one.ranks), one.cores or 1.0
    wanted = math.ceil(one.threads + one.workers)
    gains = None
    if saved is not None:
        gains = Predicted(
            1 - saved,
            None,
            "measured what-if: the same steps without the time in which main threads stood ready; "
            "threads that spin while they wait cost more than that",
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
                "Leave room for the loader's workers",
                "Fewer of them (`num_workers`), or less work a sample (decode and resize once, "
                "beforehand).",
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
    summary="The ranks' computing threads (and busy loader workers) are more than the cores or the "
    "CPU quota of their host.",
    measured="Threads that torch computes with, of all ranks of a host, and loader workers by the "
    "CPU time that they use, against the cores of their affinity or the quota of their control "
    "groups. Whether it matters: the share of time in which a rank's main thread stood ready "
    "without a core (schedstat, sampled once a second). What it costs is a what-if over the same "
    "steps without that time.",
    thresholds="More threads than cores, and main threads that wait for a core. Warning if a step "
    "without that would be 5 % shorter; never where each rank has one thread, as no setting helps "
    "then. Measured, two ranks with two threads each on two cores: the wait promised a third less "
    "time, one thread each took half.",
    fixes="One computing thread a rank (`OMP_NUM_THREADS`) or cores divided by ranks; fewer "
    "busy loader workers; more cores.",
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
            "share of time in which a main thread stands ready without a core, from which more "
            "threads than cores matter (the contract's 5 % of total time).",
        ),
    ),
)
