"""Memory that will run out: it grows, torch keeps flushing its cache, a long batch may come, or the
host is full all the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.capacity.memory_growth import (
    MemoryGrowth,
    find_growing_devices,
    find_growing_hosts,
)
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules import advice
from mgpu_doctor.rules.culprits import culprit_from, culprits_among
from mgpu_doctor.rules.memory import full_host, long_batch_risk
from mgpu_doctor.rules.memory.leaks import (
    FIRST_EPOCH,
    GROWN,
    ON_DEVICE,
    ON_HOST,
    confidence_of,
    growth_rows,
    is_first_epoch,
    is_full_soon,
    name_ranks,
    steepest,
    with_slowdown,
)
from mgpu_doctor.rules.rule import Detector, Limit, Limits, Rule

SOON = Limit(
    "soon",
    900.0,
    "s",
    "time until memory is full, below which it is critical: a quarter of an hour is short for a "
    "checkpoint and an inspection of the job.",
)
RETRIES = Limit(
    "retries",
    5,
    "times",
    "how often torch flushed its allocator cache to serve a request, from which it is reported. "
    "The goal is none (torchtune's pull request 1360); a few can come from one odd batch.",
)
OWN_LIMIT = " The process reaches its own limit (`ulimit -v` or `-d`) before the host is full."
MOST_RANKS = 8
"""Ranks whose retries are listed as evidence."""


def _find_growth(measures: Measures, limits: Limits) -> Iterable[Finding]:
    case, step = measures.case, measures.step_seconds
    on_device = find_growing_devices(case, limits["grown"])
    on_host = find_growing_hosts(case, step, limits["grown"])
    if step is not None and is_full_soon(measures, on_device):
        yield _report(measures, step, on_device, "device", limits)
    if step is not None and is_full_soon(measures, on_host):
        finding = _report(measures, step, on_host, "host", limits)
        yield with_slowdown(finding, measures, steepest(on_host))


def _report(
    measures: Measures, step: float, growing: Sequence[MemoryGrowth], where: str, limits: Limits
) -> Finding:
    known = [growth for growth in growing if growth.left is not None]
    first = min(known, key=lambda growth: growth.left or (0.0,))
    expected, earliest, latest = first.left or (0.0, 0.0, 0.0)
    leaking = steepest(growing)
    newest = int(first.rank.steps["step"][-1])
    return Finding(
        code="oom-risk",
        severity=Severity.CRITICAL if earliest * step <= limits["soon"] else Severity.WARNING,
        confidence=confidence_of(leaking, on_host=where == "host"),
        title=f"The {where} memory of {name_ranks(measures, leaking)} is full in about "
        f"{expected:,.0f} steps ({format_seconds(expected * step)}): it grows by "
        f"{format_bytes(first.growth.slope)} per step",
        cause="It has grown in every third of the measured time. By the 95 % interval of the "
        f"slope it is full between step {newest + earliest:,.0f} and step {newest + latest:,.0f}; "
        "one large batch can be enough before that."
        + (OWN_LIMIT if first.limited else "")
        + (FIRST_EPOCH if where == "host" and is_first_epoch(leaking) else ""),
        culprits=culprits_among(measures, (growth.rank for growth in leaking)),
        evidence=(
            *growth_rows(leaking),
            Evidence(f"free {where} memory", first.free, "bytes", None, _source(first, where)),
        ),
        fixes=(
            ON_DEVICE if where == "device" else ON_HOST,
            Fix(
                "save-now",
                "Save a checkpoint before it is full",
                f"Save one now and at least every {max(1, int(earliest / 2)):,} steps, and restart "
                "from it: a restart frees what leaked.",
            ),
        ),
    )


def _source(growth: MemoryGrowth, where: str) -> str:
    if where == "device":
        return "NVML samples; torch's unused cache counts as free"
    if growth.limited:
        return "host samples; by its own limit (`ulimit -v` or `-d`)"
    return "host samples; the control group's limit if it has one"


def _find_cache_flushes(measures: Measures, limits: Limits) -> Iterable[Finding]:
    retries = [(rank.metadata.device_memory.retries or 0, rank) for rank in measures.case.ranks]
    flushing = sorted(
        ((times, rank) for times, rank in retries if times >= limits["retries"]),
        key=lambda item: -item[0],
    )
    if not flushing:
        return
    ranks = format_ranks(rank.rank or 0 for _, rank in flushing)
    yield Finding(
        code="oom-risk",
        severity=Severity.WARNING,
        confidence=0.8,
        title=f"No headroom left on the device of {ranks}: torch flushed its allocator cache "
        f"{flushing[0][0]} times",
        cause="A request did not fit, so torch waited for the device, returned its cached memory "
        "and tried again. Every flush costs time, and one larger batch ends the job.",
        culprits=tuple(culprit_from(rank) for _, rank in flushing),
        evidence=tuple(
            Evidence(
                f"cache flushes of rank {rank.rank}",
                times,
                "times",
                limits["retries"],
                "torch's allocator (num_alloc_retries)",
            )
            for times, rank in flushing[:MOST_RANKS]
        ),
        fixes=(
            Fix(
                "expandable-segments",
                "Use expandable segments",
                advice.environment(measures, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
            ),
            advice.PLAN_MEMORY,
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="oom-risk",
        family="memory",
        summary="Memory will run out while the job runs.",
        measured="In a running job: the memory of each rank at the end of steps, on its device as "
        "its framework allocates it and on the host as its process holds it, as for leak-device "
        "and leak-host; compared with what the device, the limits of the process (`ulimit -v`, "
        "`-d`), the control group or the host has left. The growth of all ranks on it is added up. "
        "Also, whether the job runs or is over: how often torch flushed its allocator cache.",
        thresholds="Full within a day; later is leak-device or leak-host. The interval is that of "
        "the slope (Sen, 95 %) and does not cover other events. For a long batch: at least five "
        "peaks of four sizes that differ by a fifth, with a linear fit that explains 95 %; 150 "
        "batches; and the largest size did not occur three times (that would be a maximum length).",
        fixes="Detach what is kept from step to step; save a checkpoint before memory is full; "
        "make room.",
        examine=_find_growth,
        alternatives=(
            Detector(_find_cache_flushes),
            Detector(long_batch_risk.find_long_batch_risk, long_batch_risk.MEASURED),
            Detector(full_host.find_full_host, full_host.MEASURED),
        ),
        limits=(
            GROWN,
            SOON,
            RETRIES,
            long_batch_risk.AHEAD,
            full_host.FULL,
            full_host.PRESSED,
        ),
        unverified="on a GPU",
    ),
)
