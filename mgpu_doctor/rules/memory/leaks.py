"""Memory that grows step after step: on a device, or on the host."""

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
from mgpu_doctor.case import birth
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.host_contention import find_host_cause

GROWN = Limit(
    "grown",
    64 * 1024 * 1024,
    "bytes",
    "what it must have grown at least, by the lower bound of the slope: allocators and caches of "
    "healthy jobs stay below it (200 simulated healthy series of each kind).",
)
SOON = 3 * 86_400.0
"""Seconds: what is full later than that is only worth knowing, as few jobs run for so long."""
DAY = 86_400.0
"""Seconds: a usual time limit of a cluster's queue."""
LIKE = 0.5
"""Ranks with at least this share of the steepest slope leak, too."""
MOST_TOLD = 8
"""Ranks whose growth is told one by one."""
PAGE = 4096
"""Bytes that a fault brings, at least."""
FAULT = 1.5e-6
"""Seconds that a page of 4 KiB was measured to take (docs/performance.md)."""
SHARE = 0.5
"""Of the pages that a rank takes anew, which must stay for the leak to be why it is slow."""
FOLDED = ("straggler-host", "straggler-compute", "straggler-other", "straggler-optimizer")


def _device(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = find_growing_devices(measures.case, limits["grown"])
    if found and not soon_full(measures, found):
        yield _finding(measures, found, "leak-device")


def _host(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = find_growing_hosts(measures.case, measures.step_seconds, limits["grown"])
    if found and not soon_full(measures, found):
        yield _finding(measures, found, "leak-host")


def soon_full(measures: Measures, found: Sequence[MemoryGrowth]) -> bool:
    """Whether the job still runs and will have filled it within a day: `oom-risk` tells it then."""
    step = measures.step_seconds
    left = [one.left[0] for one in found if one.left is not None]
    running = measures.case.job.outcome is Outcome.RUNNING
    return running and step is not None and bool(left) and min(left) * step <= DAY


def steepest(found: Sequence[MemoryGrowth]) -> list[MemoryGrowth]:
    """Those that grow like the one that grows most, which comes first."""
    most = max(one.growth.slope for one in found)
    alike = [one for one in found if one.growth.slope >= LIKE * most]
    return sorted(alike, key=lambda one: -one.growth.slope)


def culprits(measures: Measures, found: Sequence[MemoryGrowth]) -> tuple[Culprit, ...]:
    """Who they are; nobody where they are all of several."""
    if len(found) == len(measures.case.ranks) > 1:
        return ()
    ranks = sorted((one.rank for one in found), key=lambda rank: rank.rank or 0)
    return tuple(Culprit(rank.rank, rank.host, rank.device, rank.pid) for rank in ranks)


def who(measures: Measures, found: Sequence[MemoryGrowth]) -> str:
    """`rank 1`, or `every rank` where these are several."""
    if len(found) == len(measures.case.ranks) > 1:
        return "every rank"
    return format_ranks(one.rank.rank or 0 for one in found)


def first_epoch(found: Sequence[MemoryGrowth]) -> bool:
    """Whether their loaders are still in the first pass over the data: a cache may fill in it."""
    loaders = [one for filling in found for one in birth.loaders(filling.rank)]
    return bool(loaders) and all(one.epochs == 1 for one in loaders)


def sureness(found: Sequence[MemoryGrowth], *, on_host: bool) -> float:
    """The confidence of what is said of them."""
    return 0.7 if on_host and first_epoch(found) else 0.9


def evidence(found: Sequence[MemoryGrowth]) -> tuple[Evidence, ...]:
    """How fast each of them grows, the first eight of them."""
    return tuple(
        Evidence(
            f"growth of rank {one.rank.rank} a step, with 95 % sureness at least "
            f"{format_bytes(one.growth.low)}",
            one.growth.slope,
            "bytes",
            None,
            one.source,
        )
        for one in found[:MOST_TOLD]
    )


def _finding(measures: Measures, found: Sequence[MemoryGrowth], code: str) -> Finding:
    leaking, step = steepest(found), measures.step_seconds
    on_host = code == "leak-host"
    left = min((one.left[0] for one in found if one.left is not None), default=None)
    lasts = left * step if left is not None and step else None
    full = f"; at that pace it is full in about {format_seconds(lasts)}" if lasts else ""
    told = Finding(
        code=code,
        severity=Severity.INFO if lasts is not None and lasts > SOON else Severity.WARNING,
        confidence=sureness(leaking, on_host=on_host),
        title=f"The {'host' if on_host else 'device'} memory of {who(measures, leaking)} grows by "
        f"{format_bytes(leaking[0].growth.slope)} a step and does not stop{full}",
        cause="It has grown throughout the run, in each third of it, which caches that fill and "
        "allocators that warm up do not."
        + (FIRST_EPOCH if on_host and first_epoch(leaking) else ""),
        culprits=culprits(measures, leaking),
        evidence=evidence(leaking),
        fixes=(ON_HOST if on_host else ON_DEVICE,),
    )
    return with_slowness(told, measures, leaking) if on_host else told


def with_slowness(found: Finding, measures: Measures, leaking: Sequence[MemoryGrowth]) -> Finding:
    """The finding of a leak on the host, with what the leak costs the other ranks where one that
    leaks holds them up by it; it stands for that finding, too."""
    grows = {one.rank.rank: one.growth.slope for one in leaking}
    held_up = [
        one
        for one in measures.stragglers or ()
        if one.rank in grows and _by_new_pages(measures, one, grows[one.rank])
    ]
    accused = {one.rank for one in found.culprits}
    if not held_up or not {one.rank for one in held_up} <= accused:
        return found
    worst = max(held_up, key=lambda one: one.saved)
    severity = Severity.WARNING if found.severity is Severity.INFO else found.severity
    return replace(
        found,
        severity=severity if severity_of_cost(worst.saved) is Severity.WARNING else found.severity,
        cause=f"{found.cause} {_slows(measures, worst, grows[worst.rank])}",
        victims=tuple(
            rank.rank
            for rank in measures.case.ranks
            if rank.rank is not None and rank.rank not in accused
        ),
        cost=Cost(worst.saved, worst.saved * worst.step_seconds, found.cost.bytes),
        replaces=(*found.replaces, *FOLDED),
    )


def _by_new_pages(measures: Measures, one: Straggler, slope: float) -> bool:
    """Whether pages taken anew explain its excess, and most of these are what it keeps. Where page
    faults were not sampled: whether those that it keeps are enough, nothing else does."""
    causes = measures.causes.get(one.rank, ())
    cause = find_host_cause(causes, DECIDES)
    taken = measures.surroundings.get(one.rank, UNSEEN).faulting
    if taken is None:
        return cause is None and FAULT * slope / PAGE >= DECIDES * one.excess
    by_pages = cause is not None and cause.name == "host-paging"
    return by_pages and slope >= SHARE * PAGE * taken * one.step_seconds


def _slows(measures: Measures, one: Straggler, slope: float) -> str:
    slower = f"{format_seconds(one.excess)} a step slower than the others, which wait for it"
    if measures.surroundings.get(one.rank, UNSEEN).faulting is not None:
        return f"Taking these pages from the kernel makes rank {one.rank} {slower}."
    return (
        f"Rank {one.rank} is {slower}. That is probably for the new pages, which take about "
        f"{format_seconds(FAULT * slope / PAGE)} at {FAULT * 1e6:g} µs each; how many it took was "
        "not "
        "sampled, and nothing else was seen to explain it."
    )


FIRST_EPOCH = (
    " The first pass over the data is not over: a dataset that keeps what it has decoded grows "
    "like this until it is."
)
ON_DEVICE = Fix(
    "let-go",
    "Find what keeps tensors from step to step",
    "A loss that is added up with its graph (`total += loss`: write `total += loss.item()`), "
    "outputs kept in a list, hooks that store activations, retain_graph=True. "
    "`torch.cuda.memory._record_memory_history()`, a hundred steps, `_dump_snapshot(file)`, and "
    "`mgpu-doctor diagnose file` says whose code holds it.",
)
ON_HOST = Fix(
    "let-go",
    "Find what keeps objects from step to step",
    "Lists of metrics or samples that only grow, a dataset that caches what it has decoded, "
    "losses kept with their graphs. `python -X tracemalloc=10` or memray shows the lines that "
    "hold most after some minutes.",
)
_HOW = (
    "Theil's and Sen's slope with its 95 % interval, where Mann's and Kendall's test is beyond "
    "four standard deviations and each third of the run grows, too."
)
RULES: tuple[Rule, ...] = (
    Rule(
        code="leak-device",
        family="memory",
        summary="A device's allocated memory grows step after step.",
        measured=f"Allocated bytes at the end of each step after warm-up. {_HOW}",
        thresholds="The limit below, and the certainty of the test (facts of simulation).",
        fixes="Detach what is kept from step to step.",
        examine=_device,
        limits=(GROWN,),
        unverified="on a GPU",
    ),
    Rule(
        code="leak-host",
        family="memory",
        summary="A rank's memory on the host grows all the time.",
        measured="Resident memory of the rank's process, which it reads itself at the ends of "
        "steps (or, of an older recording, in the host samples), after warm-up, 30 times at least. "
        f"{_HOW}",
        thresholds="The limit below, and the certainty of the test (facts of simulation).",
        fixes="Find what keeps objects from step to step.",
        examine=_host,
        limits=(GROWN,),
    ),
)
