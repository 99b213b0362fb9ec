"""The cost of communication, for several rules."""

from __future__ import annotations

from mgpu_doctor.analysis.cost.communication_cost import measure_core_contention
from mgpu_doctor.analysis.cost.gradient_reduction import (
    Exchanges,
    Reduction,
    count_exchanges,
    exposed_seconds,
    logged_reduction,
    sample_ranks,
    transfer_seconds,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Cost

LOGGED = "DistributedDataParallel's own log, in the first iterations and each hundredth"
MIB = 1 << 20
FIRST_BUCKET = MIB
"""Bytes of torch's first bucket, which does not depend on `bucket_cap_mb`."""
DEFAULT_CAP_MIB = 25
CAPS_MIB = (DEFAULT_CAP_MIB, 10, 5, 2, 1)
MOST_BUCKETS = 10
"""Most buckets: more hide little more, and each has a latency that the formula leaves out."""
ONE_PARAMETER = 1.5
"""A bucket larger than this multiple of the cap is one large parameter, which no cap divides."""
ONE_SHARE = 0.5
"""A bucket with this share of all bytes leaves too little computation to overlap with."""
ENOUGH = 0.9
"""The advice is the largest bucket that gives this share of the best gain."""
HALF = 0.5
"""Least exchanges per step beyond one per update that count as needless."""


def exchanged(measures: Measures) -> Exchanges | None:
    """The counts of the rank with the fewest exchanges; None if any rank's are unknown."""
    counts = [count_exchanges(rank) for rank in sample_ranks(measures.case.ranks)]
    known = [count for count in counts if count is not None]
    return (
        min(known, key=lambda exchanges: exchanges.synced)
        if known and len(known) == len(counts)
        else None
    )


def exposed_share(measures: Measures, often: Exchanges | None) -> tuple[float, str] | None:
    """Share of the step time in which data moves and nothing else happens, and its source."""
    if measures.moving is not None and measures.structure.alike:
        return measures.moving.share, "least of all ranks' time in collectives, step by step"
    logged = logged_reduction(measures.case.ranks)
    if logged is None or often is None or not measures.step_seconds:
        return None
    return min(1.0, logged.exposed * often.synced / measures.step_seconds), LOGGED


def needless(measures: Measures) -> float:
    """Share of the step time of exchanges that no update needs; 0.0 if unknown."""
    often = exchanged(measures)
    moved = exposed_share(measures, often)
    if often is None or moved is None or often.synced - often.updates < HALF:
        return 0.0
    return min(1.0, moved[0] + _hidden_cost(measures, moved[0])) * often.needless


def _hidden_cost(measures: Measures, share: float) -> float:
    """Share of the step time by which overlapped communication delays backward: on fully used
    cores, the CPU time of the threads that move data."""
    crowd = measure_core_contention(measures.case.ranks, measures.surroundings, share)
    logged = logged_reduction(measures.case.ranks)
    if crowd is None or not crowd.crowded or not crowd.moving or logged is None:
        return 0.0
    return crowd.moving * max(0.0, 1 - logged.exposed / max(logged.communication, 1e-12))


def overlap_gain(measures: Measures) -> tuple[float, int, Reduction] | None:
    """Share of the step time that smaller buckets would hide, their size in MiB, and the log; None
    if the buckets are not the cause or nothing is known."""
    logged, often = logged_reduction(measures.case.ranks), exchanged(measures)
    if logged is None or often is None or not measures.step_seconds or not logged.buckets:
        return None
    whole = sum(logged.buckets)
    largest = max(logged.buckets)
    if whole <= 2 * FIRST_BUCKET or largest < ONE_SHARE * whole:
        return None
    if logged.cap and largest > max(ONE_PARAMETER * logged.cap, FIRST_BUCKET):
        return None
    moved = exposed_share(measures, often)
    now = logged.exposed
    if moved is not None and often.synced:
        now = min(now, moved[0] * measures.step_seconds / often.synced)
    transfer = transfer_seconds(logged.backward, now, logged.buckets)
    by_cap = {
        mib: now - exposed_seconds(logged.backward, transfer, _split(whole, mib * MIB))
        for mib in CAPS_MIB
        if mib * MIB * MOST_BUCKETS >= whole or mib == CAPS_MIB[0]
    }
    best = max(by_cap.values())
    if best <= 0:
        return None
    mib = next(mib for mib, gain in by_cap.items() if gain >= ENOUGH * best)
    needed = min(often.synced, often.updates)
    return by_cap[mib] * needed / measures.step_seconds, mib, logged


def _split(whole: int, cap: int) -> list[int]:
    """Buckets of at most `cap` bytes, as torch would make them of small parameters."""
    first = min(FIRST_BUCKET, cap, whole)
    rest = whole - first
    return [first, *([cap] * (rest // cap)), *([rest % cap] if rest % cap else [])]


def cost(saved: float | None, step: float | None) -> Cost:
    """The cost of a share of a step of `step` seconds; empty if either is unknown."""
    if saved is None or not step:
        return Cost()
    return Cost(step_fraction=saved, seconds_per_step=saved * step)
