"""Pipeline stages with unequal work: all ranks wait for the slowest stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.structure.pipeline_stages import Stages
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule

MODEL = "pipeline model (sum of the stages + (m - 1) x the slowest) / m on the measured stages"
ALIKE = 1.1
"""A stage counts as no larger than others up to this multiple of the median's parameters."""


def _examine(measures: Measures, limits: Limits) -> Iterable[Finding]:
    stages = measures.stages
    if stages is None or not stages.steady or stages.imbalance < limits["imbalance"]:
        return
    slow = stages.ranks[stages.slowest]
    grew = any(straggler.rank in slow for straggler in measures.stragglers or ())
    parameters = _parameters(measures, stages)
    by_itself = _as_large(stages, parameters)
    cost = stages.saved_like_others if by_itself else stages.saved
    if grew or cost is None or cost < limits["cost"]:
        return
    work = stages.work[stages.slowest]
    slight = by_itself and stages.imbalance < limits["alike"]
    yield Finding(
        code="imbalance-stage",
        severity=Severity.INFO if slight else severity_of_cost(cost),
        confidence=round(min(0.99, max(0.5, stages.positive)), 2),
        title=f"Pipeline stage {stages.slowest} ({format_ranks(slow)}) is the slowest: "
        f"{format_seconds(work)} of work per step; the mean stage takes "
        f"{format_seconds(stages.mean)}",
        cause=f"The stages do unequal work, and the others wait for the slowest: ranks are idle "
        f"for {format_share(stages.bubble)} of the step. {_why(stages, parameters)}",
        culprits=tuple(culprit_of(measures, rank) for rank in slow),
        victims=tuple(sorted(rank for stage in stages.ranks for rank in stage if rank not in slow)),
        evidence=tuple(_evidence(measures, stages)),
        since_step=0,
        cost=Cost(step_fraction=cost, seconds_per_step=cost * stages.step_seconds),
        fixes=(*([_fix_rank(stages, cost)] if by_itself else []), *_fixes(stages)),
    )


def _why(stages: Stages, parameters: list[int] | None) -> str:
    if parameters is None:
        return "It is unknown whether its layers are larger or its ranks are slower."
    sizes = f"({parameters[stages.slowest]:,} parameters, the median stage {_middle(parameters):,})"
    if not _as_large(stages, parameters):
        return f"It holds too much of the model {sizes}."
    return (
        f"It is no larger than the others {sizes}, so first check what else runs in it (the loss, "
        "longer sequences, code that only this rank runs), its host and its device."
    )


def _as_large(stages: Stages, parameters: list[int] | None) -> bool:
    """Whether the slowest stage is known to hold no more of the model than others."""
    return parameters is not None and parameters[stages.slowest] <= ALIKE * _middle(parameters)


def _middle(parameters: list[int]) -> int:
    return int(median(parameters))


def _parameters(measures: Measures, stages: Stages) -> list[int] | None:
    """The number of parameters of each stage; None if any is unknown."""
    known = measures.structure.parameters
    each = [max((known.get(rank, 0) for rank in stage), default=0) for stage in stages.ranks]
    return each if all(each) else None


def _evidence(measures: Measures, stages: Stages) -> Iterator[Evidence]:
    count = len(measures.joined.steps) if measures.joined else 0
    source = f"{count} steps, own time in forward and backward"
    for number, (stage, work) in enumerate(zip(stages.ranks, stages.work, strict=True)):
        yield Evidence(
            f"work of stage {number} per step, compared with the mean",
            work,
            "s",
            stages.mean,
            source,
            format_ranks(stage),
        )
    yield Evidence(
        "share of the step in which ranks are idle, compared with equal stages",
        stages.bubble,
        "fraction",
        stages.bubble_of_equal,
        "time in sends, receives and collectives; (p - 1) / (m v + p - 1), v stages per rank",
    )
    yield Evidence("micro-batches per step", stages.micro_batches, "micro-batches")


def _fix_rank(stages: Stages, saved: float) -> Fix:
    who = format_ranks(stages.ranks[stages.slowest])
    return Fix(
        id="fix-rank",
        summary=f"Find what slows {who}, whose stage is as large as the others",
        how=f"Compare stage {stages.slowest} with the other stages: what it runs besides its "
        "layers, its threads, its batch, and the clocks, load and temperature of its host and "
        "device.",
        predicted=Predicted(1 - saved, None, f"{MODEL}, this one at the median of the others"),
    )


def _fixes(stages: Stages) -> Iterator[Fix]:
    work = stages.work[stages.slowest]
    least = min(range(len(stages.work)), key=lambda stage: stages.work[stage])
    over = work - stages.mean
    yield Fix(
        id="move-layers",
        summary=f"Move {format_share(over / work)} of the work of stage {stages.slowest} to other "
        "stages",
        how=f"Split the model by time, not by number of layers. An equal share is "
        f"{format_seconds(stages.mean)} per step; stage {least} has "
        f"{format_seconds(stages.work[least])}. Shift layers worth {format_seconds(over)} towards "
        "it, by moving every split point in between.",
        predicted=Predicted(1 - (stages.saved or 0.0), None, MODEL),
    )
    m = stages.micro_batches
    if m is not None and stages.saved_by_more:
        yield Fix(
            id="more-micro-batches",
            summary=f"Cut the batch into {2 * m} micro-batches instead of {m}",
            how=f"Set n_microbatches={2 * m}; the batch must be divisible by it. This shrinks the "
            "bubble but not the slowest stage, and smaller micro-batches use a device less "
            "efficiently.",
            predicted=Predicted(
                1 - stages.saved_by_more, None, f"{MODEL}; micro-batches as efficient as now"
            ),
        )


RULES = (
    Rule(
        code="imbalance-stage",
        family="slow",
        summary="The stages of a pipeline do unequal work, so all others wait for the slowest one "
        "in every micro-batch.",
        measured="Stages are found from which ranks send to and receive from each other. The work "
        "of a stage is its own time in forward and backward, without sends, receives and "
        "collectives. The same stage of several pipelines counts as one; the slowest of its ranks "
        "decides. A stage that became slow at some step is reported as a straggler instead.",
        thresholds="The same stage has the most work from the first step on, by the same test as "
        "for stragglers (`explain straggler-compute`). The cost is what equal stages would save; "
        "for a stage that is no larger than the others, what it would save at their median. Step "
        "time is modelled as T = (sum of the stages + (m - 1) x the slowest) / m with m "
        "micro-batches and p stages; for equal stages this is (m + p - 1) x the work per "
        "micro-batch (GPipe, arXiv 1811.06965). An interleaved schedule with v stages per rank "
        "counts as m v micro-batches (arXiv 2104.04473); schedules that fill the bubble take as "
        "long as the slowest stage.",
        fixes="Split the model by measured time instead of by layers; give the first and the last "
        "stage fewer blocks, as they also hold the embedding and the loss. More micro-batches "
        "shrink the bubble, not the slowest stage.",
        examine=_examine,
        needs=("stragglers",),
        limits=(
            Limit(
                "imbalance",
                0.15,
                "fraction",
                "how much more work than the mean the slowest stage has; equal stages of two "
                "layers differ by 9 %, as the first needs no gradient of its input, and noise adds "
                "to that.",
            ),
            Limit(
                "alike",
                0.20,
                "fraction",
                "the same for a stage that is no larger than the others, for a warning: of two "
                "equal stages on a shared machine, one was 16 % above the mean throughout a job of "
                "5 s because its core was slower (1 of 9 runs).",
            ),
            Limit(
                "cost",
                0.01,
                "fraction",
                "minimum share of the step time that equal stages would save.",
            ),
        ),
        unverified="On GPUs, where host clocks do not show a stage's work.",
    ),
)
