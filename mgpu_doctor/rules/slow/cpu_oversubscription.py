"""More computing threads than cores: they take turns, and all ranks are slower."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.cost.what_if import saved_if_faster
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.machines.oversubscription import CpuDemand, measure_cpu_demand
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.host_bound import cost_of_host_time
from mgpu_doctor.case.device_times import BoundBy
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_count, format_share
from mgpu_doctor.rules.advice import environment
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.failures.log_rules import log_detector
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.straggler_finding import cause_named, decides

QUEUEING = 0.05
OUTSIDE = 0.25
"""Cores used by other processes from which the job is not the only cause of the waiting."""
SOURCE = "scheduler counters of the host (schedstat), sampled after warm-up"


def _oversubscribed(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for cpu_demand in measure_cpu_demand(measures.case, measures.surroundings):
        if not cpu_demand.full or cpu_demand.cores is None:
            continue
        if cpu_demand.queueing is not None and cpu_demand.queueing < limits["queueing"]:
            continue
        saved = _saved(measures, cpu_demand)
        yield Finding(
            code="cpu-oversubscribed",
            severity=severity_of_cost(saved or 0.0)
            if cpu_demand.most_threads > 1
            else Severity.INFO,
            confidence=0.5 if cpu_demand.queueing is None else 0.9,
            title=f"{_demand(cpu_demand)} for {cpu_demand.cores:g} cores on "
            f"{cpu_demand.host}{_waiting(cpu_demand)}",
            cause=f"{_cause(cpu_demand)}{_hidden(measures, cpu_demand, saved)}",
            culprits=tuple(
                culprit_of(measures, rank) for rank in sorted(_behind(measures, cpu_demand))
            ),
            victims=cpu_demand.ranks,
            evidence=tuple(_evidence(cpu_demand)),
            since_step=0,
            cost=Cost(
                step_fraction=saved,
                seconds_per_step=None
                if saved is None or measures.step_seconds is None
                else saved * measures.step_seconds,
            ),
            fixes=_fixes(measures, cpu_demand, saved),
        )


def crowded_out(measures: Measures) -> frozenset[int]:
    """Stragglers that wait for cores which the job's own threads occupy."""
    cpu_demands = measure_cpu_demand(measures.case, measures.surroundings)
    return frozenset[int]().union(*(_behind(measures, cpu_demand) for cpu_demand in cpu_demands))


def _behind(measures: Measures, cpu_demand: CpuDemand) -> frozenset[int]:
    alone = cpu_demand.outside is None or cpu_demand.outside < OUTSIDE
    waits = cpu_demand.queueing is not None and cpu_demand.queueing >= QUEUEING
    if not (cpu_demand.full and cpu_demand.most_threads > 1 and alone and waits):
        return frozenset()
    return frozenset(
        straggler.rank
        for straggler in measures.stragglers or ()
        if straggler.rank in cpu_demand.ranks
        and decides(cause_named(measures, straggler.rank, "host-contended"))
    )


def _saved(measures: Measures, cpu_demand: CpuDemand) -> float | None:
    """Step time without the time in which main threads waited for a core, as a share of the step;
    None: unknown, for example because hosts may be ahead of their devices."""
    if cpu_demand.queueing is None or cpu_demand.most_threads < 2:
        return None
    joined, attribution = measures.joined, measures.attribution
    if joined is None or attribution is None:
        shares = dict.fromkeys(cpu_demand.ranks, cpu_demand.queueing)
        costs = cost_of_host_time(shares, measures.bound_by)
        return min(costs.values()) if costs else None
    columns = {rank: at for at, rank in enumerate(joined.ranks) if rank in cpu_demand.ranks}
    waited = {
        rank: (measures.surroundings.get(rank, UNSEEN).queueing or 0.0)
        * float(np.mean(joined.wall[:, column]))
        for rank, column in columns.items()
    }
    costs = cost_of_host_time(waited, measures.bound_by)
    if costs is None:
        return None
    if not any(costs.values()):
        return 0.0
    return saved_if_faster(attribution, {columns[rank]: costs[rank] for rank in costs})


def _demand(cpu_demand: CpuDemand) -> str:
    count = len(cpu_demand.ranks)
    workers = (
        f" and loader workers busy on {cpu_demand.workers:.1f} cores"
        if cpu_demand.workers >= 0.5
        else ""
    )
    each = f" of {count} ranks" if count > 1 else ""
    return f"{format_count(cpu_demand.threads, 'computing thread')}{each}{workers}"


def _waiting(cpu_demand: CpuDemand) -> str:
    if cpu_demand.queueing is None:
        return ""
    return f": each rank waits for a core {format_share(cpu_demand.queueing)} of the time"


def _hidden(measures: Measures, cpu_demand: CpuDemand, saved: float | None) -> str:
    """What the hosts' run-ahead shows about the cost; empty for ranks that compute on CPUs."""
    bounds = [measures.bound_by.get(rank) for rank in cpu_demand.ranks]
    if cpu_demand.most_threads < 2 or cpu_demand.queueing is None:
        return ""
    if None in bounds:
        return " What it costs is unknown: the hosts may be ahead of their devices."
    if not saved and BoundBy.DEVICE in bounds:
        return " It costs nothing: the devices have queued work meanwhile."
    return ""


def _cause(cpu_demand: CpuDemand) -> str:
    sentence = "The threads take turns on the cores"
    if cpu_demand.most_threads == 1:
        who = (
            "there are more ranks than cores" if cpu_demand.alone else "loader workers compute, too"
        )
        return f"{sentence}: {who}. Each rank has one thread, so no thread setting helps."
    sentence += ", and the threads of a rank wait for the last of them."
    if cpu_demand.queueing is None:
        return f"{sentence} The cost was not measured."
    if cpu_demand.outside is not None and cpu_demand.outside >= OUTSIDE:
        sentence += f" Other processes on this host keep {cpu_demand.outside:.1f} cores busy, too."
    return sentence


def _evidence(cpu_demand: CpuDemand) -> Iterable[Evidence]:
    yield Evidence(
        "computing threads, compared with the cores that they may use",
        cpu_demand.threads,
        "threads",
        cpu_demand.cores,
        "process metadata, affinity and control group",
        cpu_demand.host,
    )
    if cpu_demand.workers:
        yield Evidence(
            "cores that loader workers use or wait for",
            cpu_demand.workers,
            "cores",
            None,
            SOURCE,
            cpu_demand.host,
        )
    if cpu_demand.queueing is not None:
        yield Evidence(
            "share of time in which a rank's main thread waited for a core",
            cpu_demand.queueing,
            "fraction",
            QUEUEING,
            SOURCE,
            cpu_demand.host,
        )
    if cpu_demand.outside is not None:
        yield Evidence(
            "cores used by other processes than this job", cpu_demand.outside, "cores", None, SOURCE
        )


def _fixes(measures: Measures, cpu_demand: CpuDemand, saved: float | None) -> tuple[Fix, ...]:
    count, cores = len(cpu_demand.ranks), cpu_demand.cores or 1.0
    wanted = math.ceil(cpu_demand.threads + cpu_demand.workers)
    gains = None
    if saved:
        gains = Predicted(
            1 - saved,
            None,
            "measured what-if: the same steps without the time in which main threads waited for a "
            "core; threads that spin while they wait cost more",
        )
    fitting = max(1, int(cores // count))
    fixes = []
    if cpu_demand.most_threads > fitting:
        fixes.append(
            Fix(
                "fewer-threads",
                f"Give each rank {format_count(fitting, 'computing thread')} instead of "
                f"{cpu_demand.most_threads}",
                f"{environment(measures, OMP_NUM_THREADS=fitting)}\n"
                f"or in the script: torch.set_num_threads({fitting})",
                gains,
            )
        )
    if cpu_demand.workers >= 0.5:
        fixes.append(
            Fix(
                "fewer-workers",
                "Leave cores for the loader's workers",
                "Use fewer workers (`num_workers`), or less work per sample (decode and resize "
                "once, in advance).",
            )
        )
    if cpu_demand.most_threads == 1:
        fewer = ", or start fewer ranks here" if cpu_demand.alone else ""
        fixes.append(
            Fix(
                "more-cores",
                f"Give the job {format_count(wanted, 'core')}{fewer}",
                f"docker --cpus {wanted}, Slurm --cpus-per-task, Kubernetes resources.limits.cpu; "
                f"torchrun --nproc-per-node {max(1, int(cores))}"
                if cpu_demand.alone
                else f"docker --cpus {wanted}, Slurm --cpus-per-task, Kubernetes "
                "resources.limits.cpu.",
            )
        )
    return tuple(fixes)


RULE = Rule(
    code="cpu-oversubscribed",
    family="slow",
    summary=(
        "The ranks have more computing threads (and busy loader workers) than their host has cores "
        "or CPU quota."
    ),
    measured=(
        "Threads that torch computes with, of all ranks of a host, plus loader workers by the CPU "
        "time that they use, compared with the cores of their affinity or the quota of their "
        "control groups. The effect is the share of time in which a rank's main thread waited for "
        "a core (schedstat, sampled once per second). The cost is a what-if over the same steps "
        "without that time. On GPUs it is known only if the run-ahead is: a host that is ahead of "
        "its GPU costs nothing (not yet seen on a GPU)."
    ),
    thresholds=(
        "More threads than cores, and main threads that wait for a core. Warning if steps without "
        "the wait would be 5 % shorter; only info if each rank has one thread, as no thread "
        "setting helps then. Measured with two ranks of two threads each on two cores: the "
        "predicted saving was a third, one thread per rank saved half."
    ),
    fixes=(
        "Use one computing thread per rank (`OMP_NUM_THREADS`) or cores divided by ranks, fewer "
        "busy loader workers, or more cores."
    ),
    examine=_oversubscribed,
    alternatives=(log_detector("cpu-oversubscribed"),),
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
            "what makes a finding about speed a warning).",
        ),
    ),
)
