"""A host that slows down the others: all of its ranks are slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.slow_hosts import SlowHost, find_slow_hosts
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted
from mgpu_doctor.formatting import format_count, format_ranks, format_seconds
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.slow.cpu_oversubscription import crowded_out
from mgpu_doctor.rules.slow.host_contention import WHAT, find_host_cause
from mgpu_doctor.rules.slow.straggler_finding import (
    COST,
    FAMILIES,
    MEASURED,
    THRESHOLDS,
    compared_ranks,
)

OF_RANKS = frozenset({"data", "gc", "checkpoint", "evaluation"})
"""Causes that ranks have by what they run, whatever their host: they have findings of their own."""
SHARED = {
    "input": "Its ranks wait longer for data: suspect its storage, its network to the data, and "
    "the processors of its loaders.",
    "compute": "Its ranks compute more slowly: suspect clocks, heat, power, and what else runs on "
    "it.",
    "optimizer": "Its ranks take longer to update: suspect its memory and its processors.",
    "other": "Its ranks take longer between the phases of a step: suspect its processors and what "
    "else runs on it.",
}


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    ranks = compared_ranks(measures)
    on_host = {rank.rank: rank.host for rank in measures.case.ranks}
    hosts = {number: on_host[number] for number in ranks}
    found = find_slow_hosts(measures.stragglers or (), hosts, measures.structure.stages)
    slow = [straggler for host in found for straggler in host.stragglers]
    saved = sum(straggler.saved for straggler in slow)
    if not slow or saved < limits["cost"] or _have_causes_of_their_own(measures, found):
        return
    names = " and ".join(host.host for host in found)
    longer = format_seconds(median(straggler.excess for straggler in slow))
    onsets = [straggler.since for straggler in slow]
    since = max(onset or 0 for onset in onsets)
    start = f"from step {since} on" if since else "from the first step"
    numbers = [straggler.rank for straggler in slow]
    verb = "is" if len(found) == 1 else "are"
    noun, whose = ("Host", "its") if len(found) == 1 else ("Hosts", "their")
    yield Finding(
        code="slow-host",
        severity=severity_of_cost(saved),
        confidence=round(min(0.95, max(0.5, min(each.positive for each in slow))), 2),
        title=f"{noun} {names} {verb} slowing down the job: each of {whose} "
        f"{format_count(len(numbers), 'rank')} works {longer} longer per step than the ranks of "
        f"the other hosts, {start}",
        cause=_describe(measures, found),
        culprits=tuple(culprit_of(measures, rank) for rank in numbers),
        victims=tuple(rank for rank in ranks if rank not in numbers),
        evidence=tuple(row for host in found for row in _list_evidence(host)),
        since_step=since,
        cost=Cost(
            step_fraction=saved,
            seconds_per_step=saved * median(straggler.step_seconds for straggler in slow),
        ),
        fixes=(_compare_hosts(hosts, found, saved), *_list_quota_fixes(measures, found)),
    )


def _have_causes_of_their_own(measures: Measures, found: Iterable[SlowHost]) -> bool:
    """Whether what a rank runs explains its slowness: its batches, for example."""
    numbers = [rank for host in found for rank in host.ranks]
    causes = [cause for rank in numbers for cause in measures.causes.get(rank, ())]
    decided = any(cause.name in OF_RANKS and (cause.share or 0.0) >= DECIDES for cause in causes)
    return decided or any(rank in crowded_out(measures) for rank in numbers)


def _describe(measures: Measures, found: Iterable[SlowHost]) -> str:
    sentences = []
    for host in found:
        explained = {
            family: sum(host.by_phase.get(phase, 0.0) for phase in phases)
            for family, phases in FAMILIES.items()
        }
        cause = _find_common_cause(measures, host)
        who = f"All of its ranks ({format_ranks(host.ranks)}) are slow"
        sentences.append(f"{who}, and no rank of another host is.")
        if cause is not None:
            sentences.append(f"They spend the time {WHAT[cause]}.")
        else:
            sentences.append(SHARED[max(explained, key=lambda family: explained[family])])
    return " ".join(sentences)


def _find_common_cause(measures: Measures, host: SlowHost) -> str | None:
    """The cause on the host that all of its ranks have; None: none, or not measured."""
    causes = [find_host_cause(measures.causes.get(rank, ()), DECIDES) for rank in host.ranks]
    names = {cause.name if cause is not None else None for cause in causes}
    return names.pop() if len(names) == 1 else None


def _list_evidence(host: SlowHost) -> Iterable[Evidence]:
    source = f"{min(straggler.steps for straggler in host.stragglers)} steps"
    own = median(straggler.own for straggler in host.stragglers)
    usual = median(straggler.own_of_others for straggler in host.stragglers)
    where = f"host {host.host}"
    yield Evidence(
        "own work per step, compared with the other ranks", own, "s", usual, source, where
    )
    waits = median(straggler.in_collectives for straggler in host.stragglers)
    usual = median(straggler.in_collectives_of_others for straggler in host.stragglers)
    yield Evidence(
        "time in collectives per step, compared with the other ranks",
        waits,
        "s",
        usual,
        source,
        where,
    )
    count = len(host.ranks)
    yield Evidence(
        "its slow ranks, of all that were compared", count, "ranks", count, source, where
    )
    for phase, extra in sorted(host.by_phase.items(), key=lambda item: -item[1]):
        if extra >= 0.1 * host.excess:
            yield Evidence(f"{phase} in excess of the others", extra, "s", 0.0, source, where)


def _compare_hosts(hosts: Mapping[int, str], found: Iterable[SlowHost], saved: float) -> Fix:
    names = {host.host for host in found}
    healthy = next((name for name in hosts.values() if name not in names), "OTHER_HOST")
    return Fix(
        "compare-hosts",
        "Compare the host with another one, or replace it",
        f"`mgpu-doctor preflight --hosts {','.join((*sorted(names), healthy))}` tests cores, "
        "memory, disk and GPUs of both. To go on at once, leave the host out of the job.",
        Predicted(
            step_time_ratio=1 - saved,
            memory_bytes=None,
            basis="measured what-if: the same steps with the own work of all these ranks at the "
            "median of the other ranks",
        ),
    )


def _list_quota_fixes(measures: Measures, found: Iterable[SlowHost]) -> Iterable[Fix]:
    names = [host.host for host in found if _find_common_cause(measures, host) == "host-throttled"]
    if names:
        yield Fix(
            "raise-quota",
            f"Raise the CPU quota on {' and '.join(names)}, or remove it",
            "docker update --cpus N CONTAINER; Kubernetes: resources.limits.cpu; systemd: "
            "systemctl set-property UNIT CPUQuota=N00%; Slurm: more --cpus-per-task.",
        )


RULES = (
    Rule(
        code="slow-host",
        family="slow",
        summary="All ranks of a host are slow, and those of the other hosts wait for them.",
        measured=MEASURED.format(
            phases="If all ranks of a host are slow and no rank of another host is, the host is "
            "named."
        ),
        thresholds=f"{THRESHOLDS} At least two ranks of the host are compared, and each has half "
        "of the largest excess (choices). A host is not named if batches, garbage collection, "
        "checkpoints or evaluation explain half of a rank's excess, or if no other host has a "
        "rank that does the same work.",
        fixes="Compare the host with another one (`mgpu-doctor preflight --hosts A,B`): clocks, "
        "heat, power, storage, CPU quota, other processes. Replace it or leave it out.",
        examine=_examine,
        needs=("stragglers",),
        replaces=(
            "straggler-compute",
            "straggler-other",
            "straggler-optimizer",
            "straggler-input",
            "straggler-host",
        ),
        limits=(COST,),
    ),
)
