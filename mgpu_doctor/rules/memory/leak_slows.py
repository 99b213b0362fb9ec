"""Memory that is new in every step costs time: the kernel has to give and clear each page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mgpu_doctor.analysis.capacity.memory_growth import MemoryGrowth
from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES
from mgpu_doctor.findings import Cost, Finding, Severity
from mgpu_doctor.formatting import format_seconds
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.slow.host import cause_of

PAGE = 4096
"""Bytes that a fault brings, at least."""
FAULT = 1.5e-6
"""Seconds that a page of 4 KiB was measured to take (docs/performance.md)."""
SHARE = 0.5
"""Of the pages that a rank takes anew, which must stay for the leak to be why it is slow."""
FOLDED = ("straggler-host", "straggler-compute", "straggler-other", "straggler-optimizer")


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
    cause = cause_of(causes, DECIDES)
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
