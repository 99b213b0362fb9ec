"""A rank that slows down the others because it gets less CPU time than they do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, Children, Surroundings
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES, Cause
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Evidence, Finding, Fix
from mgpu_doctor.formatting import format_cores, format_count
from mgpu_doctor.rules.advice import environment, is_alive
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow import cpu_oversubscription
from mgpu_doctor.rules.slow.cpu_oversubscription import OUTSIDE, crowded_out
from mgpu_doctor.rules.slow.straggler_finding import COST, MEASURED, THRESHOLDS, straggler_finding

OTHERS = ("data", "gc", "checkpoint", "evaluation")
"""Causes with findings of their own; the host is the cause if it explains more."""
WHAT = {
    "host-contended": "waiting for a core",
    "host-throttled": "waiting for CPU quota",
    "host-cores": "computing on fewer cores",
    "host-paging": "reallocating memory from the kernel",
}
MALLOC = {"MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_MMAP_THRESHOLD_": 32 << 20}
"""glibc keeps freed memory with these (mallopt(3); 32 MiB is the most that all versions take)."""
SOURCE = "scheduler counters of the host (schedstat), sampled after warm-up"


@dataclass(frozen=True, slots=True)
class _Place:
    """A straggler's host facts and the medians of the other ranks."""

    one: Straggler
    rank: Rank | None
    cause: Cause
    own: Surroundings
    waiting_of_others: float | None
    faulting_of_others: float | None
    wider: frozenset[int] | None
    """Cores of another rank of the host that include its own and more; None: no rank has more."""
    cores: frozenset[int]
    """Number of cores that the ranks of the host may use together."""


def _straggler(measures: Measures, limits: Limits) -> Iterable[Finding]:
    for straggler in measures.stragglers or ():
        cause = find_host_cause(measures.causes.get(straggler.rank, ()), limits["share"])
        if straggler.saved < limits["cost"] or cause is None:
            continue
        if cause.name in (
            "host-contended",
            "host-cores",
        ) and straggler.rank in crowded_out(measures):
            continue  # the job takes its cores itself: `cpu-oversubscribed` says so
        place = _placed(measures, straggler, cause)
        finding = straggler_finding(
            measures,
            straggler,
            code="straggler-host",
            what=WHAT[cause.name],
            phases=(),
            longer=min(cause.seconds or 0.0, straggler.excess),
            cause=_describe_surroundings(place),
            fixes=_fixes(measures, place),
        )
        yield replace(finding, evidence=(*_evidence(place), *finding.evidence))


def find_host_cause(causes: Iterable[Cause], least: float) -> Cause | None:
    """The cause on its host, if it explains enough of the excess and no other explains more."""
    known = {cause.name: cause for cause in causes if cause.seconds is not None}
    candidates = [known[name] for name in WHAT if name in known]
    if not candidates:
        return None
    shares = {cause.name: cause.share or 0.0 for cause in candidates}
    waited = shares.get("host-contended", 0.0) + shares.get("host-throttled", 0.0)
    explained = max(waited + shares.get("host-paging", 0.0), shares.get("host-cores", 0.0))
    other = max((known[name].share or 0.0 for name in OTHERS if name in known), default=0.0)
    if explained < least or other > explained:
        return None
    return max(candidates, key=lambda cause: cause.share or 0.0)


def _placed(measures: Measures, straggler: Straggler, cause: Cause) -> _Place:
    around = measures.surroundings
    rank = measures.rank(straggler.rank)
    own = around.get(straggler.rank, UNSEEN)
    sets = [
        cores
        for other in measures.case.ranks
        if other.rank is not None and rank is not None and other.host == rank.host
        if (cores := around.get(other.rank, UNSEEN).cores) is not None
    ]
    compared = measures.joined.ranks if measures.joined else ()
    others = [around.get(number, UNSEEN) for number in compared if number != straggler.rank]
    return _Place(
        one=straggler,
        rank=rank,
        cause=cause,
        own=own,
        waiting_of_others=_median(each.without_core for each in others),
        faulting_of_others=_median(each.faulting for each in others),
        wider=max((each for each in sets if own.cores and each > own.cores), key=len, default=None),
        cores=frozenset[int]().union(*sets),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _describe_surroundings(place: _Place) -> str:
    """Sentences about the rank's quota, cores and threads, beyond the cause itself."""
    own, threads = place.own, _threads(place.rank)
    sentences = []
    if place.cause.name == "host-throttled" and own.quota is not None:
        sentences.append(f"Its control group may use {own.quota:g} cores' worth of CPU time.")
    if place.cause.name == "host-cores":
        sentences.append(f"It may use {_cores(own.cores)}; the other ranks may use more.")
    if place.cause.name == "host-paging":
        sentences.append(
            "glibc's malloc returns large freed blocks to the kernel. Whether this happens in "
            "every step depends on the heap of each process."
        )
    if place.cause.name == "host-contended":
        if own.outside is not None and own.outside >= OUTSIDE:
            sentences.append(f"Other processes on this host kept {own.outside:.1f} cores busy.")
        if own.cores and threads is not None and threads > len(own.cores):
            sentences.append(f"Its {threads} computing threads share {_cores(own.cores)}.")
        if own.children is not None and (want := _wanted(own.children)) >= OUTSIDE:
            sentences.append(f"{_name_children(place.rank, own.children)} {want:.1f} cores.")
    return " ".join(sentences)


def _evidence(place: _Place) -> Iterable[Evidence]:
    own, where = place.own, f"rank {place.one.rank}"
    if place.cause.name == "host-paging" and own.faulting is not None:
        yield Evidence(
            "page faults, compared with the other ranks",
            own.faulting,
            "1/s",
            place.faulting_of_others,
            "minor faults in /proc/PID/stat",
            where,
        )
    if own.without_core is not None:
        what = "time that all its threads" if own.pooled else "share of time that its main thread"
        yield Evidence(
            f"{what} waited for a core, compared with the other ranks",
            own.without_core,
            "s/s" if own.pooled else "fraction",
            place.waiting_of_others,
            SOURCE,
            where,
        )
    if own.throttled:
        yield Evidence(
            "time in which its control group was throttled by its CPU quota, summed over cores",
            own.throttled,
            "s/s",
            0.0,
            "cpu.stat of its control group",
            where,
        )
        if own.quota is not None:
            yield Evidence("its CPU quota", own.quota, "cores", None, "its control group", where)
    if own.cores:
        yield Evidence(
            "cores it may use, of the cores available to the ranks of this host",
            len(own.cores),
            "cores",
            len(place.cores),
            "its affinity",
            where,
        )
    if own.outside is not None:
        yield Evidence(
            "cores used by other processes than this job", own.outside, "cores", None, SOURCE, where
        )


def _fixes(measures: Measures, place: _Place) -> list[Fix]:
    name, own, number = place.cause.name, place.own, place.one.rank
    if name == "host-throttled":
        return [_more_quota(place)]
    if name == "host-paging":
        return [_keep_memory(measures)]
    fixes = []
    if place.wider:
        cores = format_cores(place.wider)
        begin = "Start"
        if place.rank is not None and is_alive(measures.case, place.rank.pid):
            pid = place.rank.pid
            begin = f"taskset -acp {cores} {pid}  moves it at once. For good, start"
        fixes.append(
            Fix(
                "move-rank",
                f"Let rank {number} use more cores",
                f"{begin} it with numactl --physcpubind={cores} COMMAND, or look for "
                "`sched_setaffinity`, `--cpu-bind` (Slurm), `--cpuset-cpus` (docker) or "
                "`--numa-binding` (torchrun) that gives it fewer cores.",
            )
        )
    threads = _threads(place.rank)
    if own.cores and threads is not None and threads > len(own.cores):
        fixes.append(
            Fix(
                "fewer-threads",
                f"Use no more computing threads than cores: {len(own.cores)} instead of {threads}",
                environment(measures, OMP_NUM_THREADS=len(own.cores)),
            )
        )
    if name == "host-contended":
        fixes.append(clear_cores(own))
    return fixes


def clear_cores(own: Surroundings) -> Fix:
    """Fixes if other processes compute on the cores of a rank."""
    core = format_cores(own.cores) if own.cores else "CORE"
    return Fix(
        "clear-cores",
        "Find the other processes on these cores, and stop or move them",
        "ps -eLo psr,pcpu,pid,comm --sort=-pcpu | head -30  shows what runs on which core (first "
        f"column; the rank's: {core}).\n"
        "taskset -acp OTHER_CORES OTHER_PID  moves it; nice -n 19 lowers its priority.",
    )


def _keep_memory(measures: Measures) -> Fix:
    return Fix(
        "keep-memory",
        "Let the allocator keep freed memory",
        f"{environment(measures, **MALLOC)}\nBlocks of more than 32 MiB are still returned; "
        "jemalloc or tcmalloc (LD_PRELOAD) keep those, too.",
    )


def _more_quota(place: _Place) -> Fix:
    own = place.own
    threads = _threads(place.rank) or 1
    wanted = max(threads, math.ceil((own.quota or 0) + min(own.throttled or 0.0, threads)))
    return Fix(
        "raise-quota",
        f"Give rank {place.one.rank} a CPU quota of {format_count(wanted, 'core')}, or none",
        f"docker update --cpus {wanted} CONTAINER; Kubernetes: resources.limits.cpu: {wanted} (or "
        f"no limit, requests alone); systemd: systemctl set-property UNIT CPUQuota={wanted}00%; "
        "Slurm: more --cpus-per-task.",
    )


def _wanted(children: Children) -> float:
    """Cores."""
    return children.count * ((children.running or 0.0) + (children.queueing or 0.0))


def _name_children(rank: Rank | None, children: Children) -> str:
    """The subject and the verb of a sentence."""
    loaders = rank.metadata.loaders if rank is not None else ()
    workers = sum(loader.workers or 0 for loader in loaders)
    if not workers:
        return "Its child processes need"
    if children.count <= workers:
        return "The workers of its data loader need"
    return "Its child processes, with the workers of its data loader, need"


def _threads(rank: Rank | None) -> int | None:
    threads = rank.metadata.threads if rank is not None else None
    return threads if isinstance(threads, int) else None


def _cores(cores: frozenset[int] | None) -> str:
    return f"{format_count(len(cores or ()), 'core')} ({format_cores(cores or ())})"


RULES = (
    Rule(
        code="straggler-host",
        family="slow",
        summary=(
            "A rank gets less CPU time than the other ranks (contention for its cores, a CPU "
            "quota, fewer cores, memory reallocated in every step), and they wait for it."
        ),
        measured=MEASURED.format(
            phases=(
                "Sampled from outside once per second, beyond the median of the other ranks: how "
                "long the rank's main thread waited for a core (schedstat), and how long its "
                "control group was throttled by its quota (cpu.stat). For TensorFlow on CPUs, "
                "whose main thread waits for a thread pool, all threads count, as far as the rank "
                "takes longer without computing more. Fewer cores count by the time that its work "
                "would save if its threads ran as parallel as the others'. Reallocated memory "
                "counts by the extra time in the kernel, if the rank has 1,000 page faults per "
                "second more than the others."
            )
        ),
        thresholds=THRESHOLDS
        + (
            " The host must explain half of the excess, and more than the rank's batches, garbage "
            "collection and checkpoints do. If the job's own threads fill the cores, the finding "
            "is `cpu-oversubscribed`."
        ),
        fixes=(
            "Use other cores (`taskset`, `numactl`), raise the quota (docker, Kubernetes, "
            "systemd), use no more threads than cores (`OMP_NUM_THREADS`), or an allocator that "
            "keeps freed memory (`MALLOC_TRIM_THRESHOLD_`, jemalloc)."
        ),
        examine=_straggler,
        needs=("stragglers",),
        replaces=(
            "straggler-compute",
            "straggler-other",
            "straggler-optimizer",
            "straggler-input",
        ),
        limits=(
            COST,
            Limit(
                "share",
                DECIDES,
                "fraction",
                "minimum share of the excess that the host must explain: more than all else "
                "together.",
            ),
        ),
        unverified="A CPU quota was tried on a real version 1 control group; of version 2 only "
        "made-up files were read.",
    ),
    cpu_oversubscription.RULE,
)
