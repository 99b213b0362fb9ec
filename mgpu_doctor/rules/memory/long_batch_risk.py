"""A batch larger than any so far would not fit, and batches vary enough that one may come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.capacity.long_batches import LongBatch, find_long_batches
from mgpu_doctor.analysis.capacity.memory_growth import find_growing_devices, find_growing_hosts
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Culprit, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules.rule import Limit, Limits

AHEAD = Limit(
    "ahead",
    5.0,
    "ratio",
    "batches that are looked ahead, as a multiple of those that were looked at: the sizes of rarer "
    "ones are not in the data (in simulation the chance was told 0.4 times too small in the median "
    "of log-normal lengths, seldom too large).",
)
MEASURED = (
    "A long batch to come: peaks of memory (torch's allocator; on the host the most that the "
    "process was resident) as the largest batch so far rose, in tokens or samples a step; a "
    "straight line through them, and how often larger batches than any so far are to be expected "
    "by the tail of their sizes."
)
MOST_TOLD = 8


def examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    """Of a running job. Silent where memory grows by itself: peaks follow the time then."""
    if measures.case.job.outcome is not Outcome.RUNNING:
        return
    for where in ("device", "host"):
        found = find_long_batches(measures.case, where, limits["grown"])
        likely = sum(one.chance for one in found)
        looked = min((one.batches for one in found), default=0)
        near = [one for one in found if one.chance >= likely / (2 * len(found)) > 0]
        if not near or likely * limits["ahead"] * looked < 1 or _grows(measures, where, limits):
            continue
        yield _finding(measures, sorted(near, key=lambda one: -one.chance), where, likely)


def _grows(measures: Measures, where: str, limits: Limits) -> bool:
    if where == "device":
        return bool(find_growing_devices(measures.case, limits["grown"]))
    return bool(find_growing_hosts(measures.case, measures.step_seconds, limits["grown"]))


def _finding(measures: Measures, near: Sequence[LongBatch], where: str, likely: float) -> Finding:
    first, step = near[0], measures.step_seconds
    often = f"one in about {1 / likely:,.0f} steps"
    if step is not None:
        often += f" ({format_seconds(step / likely)})"
    whose = format_ranks(one.rank.rank or 0 for one in near)
    return Finding(
        code="oom-risk",
        severity=Severity.WARNING,
        confidence=0.7,
        title=f"A batch of more than {first.full:,.0f} {first.unit} does not fit into the {where} "
        f"memory of {whose}; the largest so far had {first.largest:,.0f}, and {often} is larger",
        cause=f"The peak follows the batch: {format_bytes(first.line.slope)} more for each of its "
        f"{first.unit}. How often such a batch comes is reckoned from the tail of the sizes so "
        "far; a bound that no batch has reached yet is not known here.",
        culprits=() if len(near) == len(measures.case.ranks) > 1 else _culprits(near),
        evidence=_evidence(near, where),
        fixes=_fixes(first),
    )


def _culprits(near: Sequence[LongBatch]) -> tuple[Culprit, ...]:
    ranks = sorted((one.rank for one in near), key=lambda rank: rank.rank or 0)
    return tuple(Culprit(rank.rank, rank.host, rank.device, rank.pid) for rank in ranks)


def _evidence(near: Sequence[LongBatch], where: str) -> tuple[Evidence, ...]:
    told: list[Evidence] = []
    for one in near[:MOST_TOLD]:
        whose = f"rank {one.rank.rank}"
        told += (
            Evidence(
                f"{where} memory at the peak of the largest batch so far, by the line",
                one.line.peak(one.largest),
                "bytes",
                one.capacity,
                f"{one.line.rungs} peaks; what there is for it: the newest samples",
                whose,
            ),
            Evidence(
                "smallest batch that does not fit, against the largest so far",
                round(one.full),
                one.unit,
                one.largest,
                "lower end of the line's 95 % interval",
                whose,
            ),
            Evidence(
                "chance of one batch to be larger than that",
                one.chance,
                "fraction",
                None,
                f"generalized Pareto tail of {one.batches} batches",
                whose,
            ),
        )
    return tuple(told)


def _fixes(one: LongBatch) -> tuple[Fix, ...]:
    saved = one.line.peak(one.fits) - one.line.peak(one.full)
    predicted = Predicted(None, round(min(0.0, saved)), "the line through measured peaks, ±95 %")
    if one.unit == "tokens":
        how = (
            f"Truncate or drop what is longer (`max_length` of the tokenizer), or fill batches by "
            f"a budget of {one.fits:,.0f} tokens, padding included, instead of a number of "
            "samples; sort by length first, so that little of it is padding."
        )
    else:
        how = f"At most {one.fits:,.0f} samples a batch; split a larger one and accumulate."
    return (
        Fix(
            "bound-batch", f"Let no batch have more than {one.fits:,.0f} {one.unit}", how, predicted
        ),
        Fix(
            "plan-memory",
            "See what would make room",
            "`mgpu-doctor plan` with your model and this GPU ranks what helps: smaller "
            "micro-batches with accumulation, checkpointing, bf16, sharding.",
        ),
    )
