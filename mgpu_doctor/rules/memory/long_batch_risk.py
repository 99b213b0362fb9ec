"""A batch larger than any so far would not fit, and batch sizes vary enough for one to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mgpu_doctor.analysis.capacity.long_batches import LongBatch, find_long_batches
from mgpu_doctor.analysis.capacity.memory_growth import find_growing_devices, find_growing_hosts
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Outcome
from mgpu_doctor.findings import Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_bytes, format_ranks, format_seconds
from mgpu_doctor.rules.advice import PLAN_MEMORY
from mgpu_doctor.rules.culprits import culprits_among
from mgpu_doctor.rules.rule import Limit, Limits

AHEAD = Limit(
    "ahead",
    5.0,
    "ratio",
    "number of batches to look ahead, as a multiple of those seen so far. The data say nothing "
    "about rarer sizes (in simulations with log-normal lengths the median estimate of the chance "
    "was 0.4 times too small, and rarely too large).",
)
MEASURED = (
    "A long batch to come: the memory peaks (torch's allocator; on the host the largest resident "
    "size of the process) as the largest batch so far grew, in tokens or samples per step; a "
    "straight line through them; and the tail of the batch sizes, which says how often larger "
    "batches are to be expected."
)
MOST_RANKS = 8
"""Ranks for which the evidence is listed."""


def find_long_batch_risk(measures: Measures, limits: Limits) -> Iterable[Finding]:
    """`oom-risk` of a running job. Silent if memory grows by itself: peaks then follow time."""
    if measures.case.job.outcome is not Outcome.RUNNING:
        return
    for where in ("device", "host"):
        batches = find_long_batches(measures.case, where, limits["grown"])
        chance = sum(batch.chance for batch in batches)
        seen = min((batch.batches for batch in batches), default=0)
        likely = [b for b in batches if b.chance >= chance / (2 * len(batches)) > 0]
        is_expected = chance * limits["ahead"] * seen >= 1
        if likely and is_expected and not _is_growing(measures, where, limits):
            likely.sort(key=lambda batch: -batch.chance)
            yield _report(measures, likely, where, chance)


def _is_growing(measures: Measures, where: str, limits: Limits) -> bool:
    if where == "device":
        return bool(find_growing_devices(measures.case, limits["grown"]))
    return bool(find_growing_hosts(measures.case, measures.step_seconds, limits["grown"]))


def _report(measures: Measures, batches: Sequence[LongBatch], where: str, chance: float) -> Finding:
    first, step = batches[0], measures.step_seconds
    interval = f"every {1 / chance:,.0f} steps"
    if step is not None:
        interval += f" ({format_seconds(step / chance)})"
    ranks = format_ranks(batch.rank.rank or 0 for batch in batches)
    return Finding(
        code="oom-risk",
        severity=Severity.WARNING,
        confidence=0.7,
        title=f"A batch of more than {first.full:,.0f} {first.unit} does not fit into the {where} "
        f"memory of {ranks}: the largest so far had {first.largest:,.0f}, and about one in "
        f"{interval} is larger",
        cause=f"The peak follows the batch size: {format_bytes(first.line.slope)} more for each of "
        f"its {first.unit}. The chance of such a batch is estimated from the tail of the sizes so "
        "far; a maximum length that no batch has reached yet is not known here.",
        culprits=culprits_among(measures, (batch.rank for batch in batches)),
        evidence=tuple(row for batch in batches[:MOST_RANKS] for row in _evidence(batch, where)),
        fixes=(_bound_batch(first), PLAN_MEMORY),
    )


def _evidence(batch: LongBatch, where: str) -> Iterable[Evidence]:
    rank = f"rank {batch.rank.rank}"
    yield Evidence(
        f"{where} memory at the peak of the largest batch so far, by the line",
        batch.line.peak(batch.largest),
        "bytes",
        batch.capacity,
        f"{batch.line.points} peaks; capacity: the newest samples",
        rank,
    )
    yield Evidence(
        "smallest batch that does not fit, against the largest so far",
        round(batch.full),
        batch.unit,
        batch.largest,
        "lower end of the line's 95 % interval",
        rank,
    )
    yield Evidence(
        "chance that a batch is larger than that",
        batch.chance,
        "fraction",
        None,
        f"generalized Pareto tail of {batch.batches} batches",
        rank,
    )


def _bound_batch(batch: LongBatch) -> Fix:
    saved = batch.line.peak(batch.fits) - batch.line.peak(batch.full)
    if batch.unit == "tokens":
        how = (
            "Truncate or drop longer samples (`max_length` of the tokenizer), or fill batches up "
            f"to {batch.fits:,.0f} tokens, padding included, instead of a number of samples; sort "
            "by length first to save padding."
        )
    else:
        how = f"At most {batch.fits:,.0f} samples per batch; split a larger one and accumulate."
    return Fix(
        "bound-batch",
        f"Limit every batch to {batch.fits:,.0f} {batch.unit}",
        how,
        Predicted(None, round(min(0.0, saved)), "the line through measured peaks, ±95 %"),
    )
