"""Memory that grows step after step, on a device or on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mgpu_doctor.analysis.capacity.memory_growth import (
    MemoryGrowth,
    find_growing_devices,
    find_growing_hosts,
)
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules.culprits import culprits_among, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.host_contention import find_host_cause

GROWN = Limit(
    "grown",
    64 * 1024 * 1024,
    "bytes",
    "minimum growth, by the lower bound of the slope. Allocators and caches of healthy jobs stay "
    "below it (200 simulated healthy series of each kind).",
)
FAR_AHEAD = 3 * 86_400.0
"""Seconds until memory is full from which on a leak is only info: few jobs run for so long."""
DAY = 86_400.0
"""Seconds: a usual time limit of a cluster's queue."""
SIMILAR = 0.5
"""Share of the steepest slope from which on another rank leaks, too."""
MOST_RANKS = 8
"""Ranks whose growth is listed as evidence."""

PAGE = 4096
"""Least bytes that a page fault brings."""
PAGE_SECONDS = 1.5e-6
"""Measured time to take a new page of 4 KiB from the kernel (docs/performance.md)."""
KEPT_SHARE = 0.5
"""Share of the new pages that must stay for the leak to be the reason why a rank is slow."""
EXPLAINED_STRAGGLERS = (
    "straggler-host",
    "straggler-compute",
    "straggler-other",
    "straggler-optimizer",
)

FIRST_EPOCH = (
    " The first epoch is not over: a dataset that caches decoded samples grows like this until "
    "then."
)
ON_DEVICE = Fix(
    "let-go",
    "Find what keeps tensors from step to step",
    "Common reasons: a loss that is summed with its graph (`total += loss`; write `total += "
    "loss.item()`), outputs kept in a list, hooks that store activations, retain_graph=True. To "
    "see whose code holds the memory: `torch.cuda.memory._record_memory_history()`, a hundred "
    "steps, `_dump_snapshot(file)`, then `mgpu-doctor diagnose file`.",
)
ON_HOST = Fix(
    "let-go",
    "Find what keeps objects from step to step",
    "Common reasons: lists of metrics or samples that only grow, a dataset that caches decoded "
    "samples, losses kept with their graphs. `python -X tracemalloc=10` or memray shows the lines "
    "that hold the most memory after some minutes.",
)


def _find_device_leak(measures: Measures, limits: Limits) -> Iterable[Finding]:
    growing = find_growing_devices(measures.case, limits["grown"])
    if growing and not is_full_soon(measures, growing):
        yield _report(measures, growing, "leak-device")


def _find_host_leak(measures: Measures, limits: Limits) -> Iterable[Finding]:
    growing = find_growing_hosts(measures.case, measures.step_seconds, limits["grown"])
    if growing and not is_full_soon(measures, growing):
        finding = _report(measures, growing, "leak-host")
        yield with_slowdown(finding, measures, steepest(growing))


def _report(measures: Measures, growing: Sequence[MemoryGrowth], code: str) -> Finding:
    leaking, step = steepest(growing), measures.step_seconds
    on_host = code == "leak-host"
    left = min((growth.left[0] for growth in growing if growth.left is not None), default=None)
    seconds = left * step if left is not None and step else None
    is_far = seconds is not None and seconds > FAR_AHEAD
    full = f"; full in about {format_seconds(seconds)} at that rate" if seconds else ""
    return Finding(
        code=code,
        severity=Severity.INFO if is_far else Severity.WARNING,
        confidence=confidence_of(leaking, on_host=on_host),
        title=f"The {'host' if on_host else 'device'} memory of {name_ranks(measures, leaking)} "
        f"grows by {format_bytes(leaking[0].growth.slope)} per step{full}",
        cause="It has grown in every third of the run. Caches that fill up and allocators that "
        "warm up stop growing." + (FIRST_EPOCH if on_host and is_first_epoch(leaking) else ""),
        culprits=culprits_among(measures, (growth.rank for growth in leaking)),
        evidence=growth_rows(leaking),
        fixes=(ON_HOST if on_host else ON_DEVICE,),
    )


# ------------------------------------------------------------- shared by the other memory findings


def is_full_soon(measures: Measures, growing: Sequence[MemoryGrowth]) -> bool:
    """Whether the job still runs and will fill its memory within a day, which is `oom-risk`."""
    step = measures.step_seconds
    left = [growth.left[0] for growth in growing if growth.left is not None]
    is_running = measures.case.job.outcome is Outcome.RUNNING
    return is_running and step is not None and bool(left) and min(left) * step <= DAY


def steepest(growing: Sequence[MemoryGrowth]) -> list[MemoryGrowth]:
    """The rank that grows fastest, then those that grow similarly fast."""
    most = max(growth.growth.slope for growth in growing)
    similar = [growth for growth in growing if growth.growth.slope >= SIMILAR * most]
    return sorted(similar, key=lambda growth: -growth.growth.slope)


def name_ranks(measures: Measures, growing: Sequence[MemoryGrowth]) -> str:
    """`rank 1`, or `every rank`."""
    if len(growing) == len(measures.case.ranks) > 1:
        return "every rank"
    return format_ranks(growth.rank.rank or 0 for growth in growing)


def is_first_epoch(growing: Sequence[MemoryGrowth]) -> bool:
    """Whether their data loaders are still in the first epoch, in which a cache may fill up."""
    loaders = [loader for growth in growing for loader in growth.rank.metadata.loaders]
    return bool(loaders) and all(loader.epochs == 1 for loader in loaders)


def confidence_of(growing: Sequence[MemoryGrowth], *, on_host: bool) -> float:
    """The confidence of a finding about them."""
    return 0.7 if on_host and is_first_epoch(growing) else 0.9


def growth_rows(growing: Sequence[MemoryGrowth]) -> tuple[Evidence, ...]:
    """How fast each of them grows."""
    return tuple(
        Evidence(
            f"growth of rank {growth.rank.rank} per step (95 % confidence: at least "
            f"{format_bytes(growth.growth.low)})",
            growth.growth.slope,
            "bytes",
            None,
            growth.source,
        )
        for growth in growing[:MOST_RANKS]
    )


# ----------------------------------------------------------------------- leaks that cost step time


def with_slowdown(finding: Finding, measures: Measures, leaking: Sequence[MemoryGrowth]) -> Finding:
    """The finding of a leak on the host, with what it costs the other ranks if the leak makes a
    rank slow: the kernel has to provide and clear every new page. It then replaces the finding of
    the straggler."""
    slopes = {growth.rank.rank: growth.growth.slope for growth in leaking}
    slowed = [
        straggler
        for straggler in measures.stragglers or ()
        if straggler.rank in slopes and _is_slowed(measures, straggler, slopes[straggler.rank])
    ]
    culprits = {culprit.rank for culprit in finding.culprits}
    if not slowed or not {straggler.rank for straggler in slowed} <= culprits:
        return finding
    worst = max(slowed, key=lambda straggler: straggler.saved)
    severity = finding.severity
    if severity is Severity.INFO:
        severity = severity_of_cost(worst.saved)
    return replace(
        finding,
        severity=severity,
        cause=f"{finding.cause} {_describe_slowdown(measures, worst, slopes[worst.rank])}",
        victims=tuple(
            rank.rank
            for rank in measures.case.ranks
            if rank.rank is not None and rank.rank not in culprits
        ),
        cost=Cost(worst.saved, worst.saved * worst.step_seconds, finding.cost.bytes),
        replaces=(*finding.replaces, *EXPLAINED_STRAGGLERS),
    )


def _is_slowed(measures: Measures, straggler: Straggler, slope: float) -> bool:
    """Whether new pages explain its excess, and it keeps most of them. If page faults were not
    sampled: whether the kept pages alone would do, and nothing else explains the excess."""
    cause = find_host_cause(measures.causes.get(straggler.rank, ()), DECIDES)
    new_pages = measures.surroundings.get(straggler.rank, UNSEEN).faulting
    if new_pages is None:
        return cause is None and PAGE_SECONDS * slope / PAGE >= DECIDES * straggler.excess
    is_paging = cause is not None and cause.name == "host-paging"
    return is_paging and slope >= KEPT_SHARE * PAGE * new_pages * straggler.step_seconds


def _describe_slowdown(measures: Measures, straggler: Straggler, slope: float) -> str:
    slower = f"{format_seconds(straggler.excess)} per step slower than the others"
    if measures.surroundings.get(straggler.rank, UNSEEN).faulting is not None:
        return (
            f"Taking these pages from the kernel makes rank {straggler.rank} {slower}, which wait "
            "for it."
        )
    return (
        f"Rank {straggler.rank} is {slower}, which wait for it. The probable reason is its new "
        f"pages, which take about {format_seconds(PAGE_SECONDS * slope / PAGE)} at "
        f"{PAGE_SECONDS * 1e6:g} µs each; page faults were not sampled, and nothing else explains "
        "it."
    )


_TEST = (
    "The slope is Theil and Sen's with its 95 % interval. A leak needs a Mann-Kendall test beyond "
    "four standard deviations, and growth in each third of the run."
)
_THRESHOLDS = "The limit below, and the significance of the test (by simulation)."
RULES: tuple[Rule, ...] = (
    Rule(
        code="leak-device",
        family="memory",
        summary="The allocated memory of a device grows step after step.",
        measured=f"Allocated bytes at the end of each step after warm-up. {_TEST}",
        thresholds=_THRESHOLDS,
        fixes="Detach what is kept from step to step.",
        examine=_find_device_leak,
        limits=(GROWN,),
        unverified="on a GPU",
    ),
    Rule(
        code="leak-host",
        family="memory",
        summary="The host memory of a rank grows step after step.",
        measured="Resident memory of the rank's process after warm-up, read by the process itself "
        f"at the end of steps (older recordings: from host samples), at least 30 times. {_TEST}",
        thresholds=_THRESHOLDS,
        fixes="Find what keeps objects from step to step.",
        examine=_find_host_leak,
        limits=(GROWN,),
    ),
)
