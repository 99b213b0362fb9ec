"""A rank that slows down the others in every step, found by sampling stacks from outside."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stacks.stack_sampling import (
    FALSE_ALARMS,
    LEAST_EXCESS,
    LEAST_SNAPSHOTS,
    SampledStraggler,
    Work,
)
from mgpu_doctor.findings import Cost, Culprit, Evidence, Finding, Fix
from mgpu_doctor.formatting import format_ranks, format_share
from mgpu_doctor.rules.culprits import severity_of_cost
from mgpu_doctor.rules.rule import Detector, Limits

CONFIDENCE = 0.8
"""Limited, because samples do not show step times."""
MEASURED = (
    f"In a job without the probe, at least {LEAST_SNAPSHOTS} stack samples of all ranks: one rank "
    f"is in its own code in {format_share(LEAST_EXCESS)} of them more often than every other rank, "
    "while the others wait in a collective or the backward pass (Fisher's exact test, "
    f"{FALSE_ALARMS:g} false alarms for all ranks together), and several steps have passed."
)


def detector(work: Work) -> Detector:
    """Detects a rank whose own work is of this kind. If steps were recorded, they decide."""

    def examine(measures: Measures, _: Limits) -> Iterable[Finding]:
        straggler = measures.sampled
        if straggler is not None and straggler.kind is work:
            yield _finding(straggler, measures)

    return Detector(examine, MEASURED, needs=("sampled",), unless=("joined",))


def _finding(straggler: SampledStraggler, measures: Measures) -> Finding:
    short = straggler.file.rpartition("/")[2]
    at = f"{short}:{straggler.line}" if straggler.line is not None else short
    site = f"{straggler.file}:{straggler.line}" if straggler.line is not None else straggler.file
    excess = straggler.own - straggler.others
    who = format_ranks(straggler.waiting)
    known = measures.rank(straggler.rank)
    return Finding(
        code=f"straggler-{straggler.kind.value}",
        severity=severity_of_cost(excess),
        confidence=CONFIDENCE,
        title=f"Rank {straggler.rank} is slowing down the other ranks: it is in "
        f"{straggler.function}() at {at} in {format_share(straggler.share)} of "
        f"{straggler.snapshots} samples",
        cause=f"It was in its own code in {format_share(straggler.own)} of the samples, no other "
        f"rank in more than {format_share(straggler.others)}. Meanwhile {who} "
        f"waited{f' in {straggler.operation}' if straggler.operation else ''}.",
        culprits=(
            Culprit(
                straggler.rank,
                host=known.host if known else None,
                device=known.device if known else None,
                pid=straggler.pid,
            ),
        ),
        victims=tuple(sorted(straggler.waiting)),
        evidence=(
            Evidence(
                "share of samples in its own code",
                straggler.own,
                "fraction",
                straggler.others,
                "stacks",
                site,
            ),
            Evidence(
                "share of samples in that function",
                straggler.share,
                "fraction",
                None,
                "stacks",
                site,
            ),
            Evidence(
                "share of samples in which the others waited, at least",
                min(straggler.waiting.values()),
                "fraction",
                1 - straggler.own,
                "stacks",
            ),
            Evidence("sampled time", round(straggler.seconds, 2), "s", None, "stacks"),
        ),
        cost=Cost(step_fraction=round(excess, 2)),
        fixes=(
            Fix(
                "that-function",
                f"Find out why {straggler.function}() takes longer on rank {straggler.rank}",
                f"It is at {site}: either only this rank does this work, or it takes longer there "
                "(its data, its files, its device). `mgpu-doctor run -- COMMAND` measures every "
                "phase of every step and shows which.",
            ),
        ),
    )
