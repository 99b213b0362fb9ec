"""A rank that slows down the others in every step, found by sampling stacks from outside."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.stack_sampling import (
    FALSE_ALARMS,
    LEAST_EXCESS,
    LEAST_LOOKS,
    Sampled,
    Work,
)
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix
from mgpu_doctor.formatting import format_ranks, format_share
from mgpu_doctor.rules.blame import severity_of_cost
from mgpu_doctor.rules.rule import Detector, Limits

CONFIDENCE = 0.8
"""Limited, because samples do not show step times."""
MEASURED = (
    f"In a job without the probe, at least {LEAST_LOOKS} stack samples of all ranks: one rank is "
    f"in its own code in {LEAST_EXCESS:.0%} of them more often than every other rank, while the "
    f"others wait in a collective or the backward pass (Fisher's exact test, {FALSE_ALARMS:g} "
    "false alarms for all ranks together), and several steps have passed."
)


def detector(work: Work) -> Detector:
    """Detects a rank whose own work is of this kind. If steps were recorded, they decide."""

    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        sampled = measures.sampled
        if sampled is not None and sampled.kind is work:
            yield _finding(sampled, measures)

    return Detector(examine, MEASURED, needs=("sampled",), unless=("joined",))


def _finding(sampled: Sampled, measures: Measures) -> Finding:
    short = sampled.file.rpartition("/")[2]
    at = f"{short}:{sampled.line}" if sampled.line is not None else short
    site = f"{sampled.file}:{sampled.line}" if sampled.line is not None else sampled.file
    excess = sampled.own - sampled.others
    who = format_ranks(sampled.waiting)
    known = measures.rank(sampled.rank)
    return Finding(
        code=f"straggler-{sampled.kind.value}",
        severity=severity_of_cost(excess),
        confidence=CONFIDENCE,
        title=f"Rank {sampled.rank} is slowing down the other ranks: it is in "
        f"{sampled.function}() at {at} "
        f"in {format_share(sampled.share)} of {sampled.looks} samples",
        cause=f"It was in its own code in {format_share(sampled.own)} of the samples, no "
        "other rank in "
        f"more than {format_share(sampled.others)}. Meanwhile {who} waited"
        f"{f' in {sampled.operation}' if sampled.operation else ''}.",
        culprits=(
            Culprit(
                sampled.rank,
                host=known.host if known else None,
                device=known.device if known else None,
                pid=sampled.pid,
            ),
        ),
        victims=tuple(sorted(sampled.waiting)),
        evidence=(
            Evidence(
                "looks in its own code", sampled.own, "fraction", sampled.others, "stacks", site
            ),
            Evidence("looks in that function", sampled.share, "fraction", None, "stacks", site),
            Evidence(
                "looks in which the others waited at least",
                min(sampled.waiting.values()),
                "fraction",
                1 - sampled.own,
                "stacks",
            ),
            Evidence("time looked at", round(sampled.seconds, 2), "s", None, "stacks"),
        ),
        cost=Cost(step_fraction=round(excess, 2)),
        fixes=(
            Fix(
                "that-function",
                f"Find out why {sampled.function}() takes longer on rank {sampled.rank}",
                f"It is at {site}: either only this rank does this work, or it takes longer there "
                "(its data, its files, its device). `mgpu-doctor run -- COMMAND` measures every "
                "phase of every step and shows which.",
            ),
        ),
    )
