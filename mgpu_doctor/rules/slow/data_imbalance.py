"""Ranks that get different amounts of data: always the same rank, or a different one each step."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.structure.load_imbalance import (
    BOTH_PASSES,
    COMPUTED,
    Loads,
    Uneven,
    Varying,
    VaryingWork,
)
from mgpu_doctor.findings import Cost, Evidence, Finding, Fix, Predicted, Severity
from mgpu_doctor.formatting import format_ranks, format_seconds, format_share
from mgpu_doctor.rules.culprits import culprit_of, severity_of_cost
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.slow.stall_finding import COST

SURE, SURE_BY_WORK = 0.95, 0.8
STAGES = (
    " Each stage is compared with its usual share of the step's work, so stages that are always "
    "larger do not count here."
)


def _data(measures: Measures, limits: Limits) -> Iterable[Finding]:
    loads = measures.loads or Loads()
    if loads.uneven is not None and loads.uneven.saved >= limits["cost"]:
        yield _uneven_data(measures, loads.uneven)
    elif loads.varying is not None and loads.varying.saved >= limits["cost"]:
        yield _varying_data(measures, loads.varying)
    elif loads.work is not None and loads.work.saved >= limits["spread"]:
        warned = loads.work.saved >= limits["warned"]
        yield _varying_work(measures, loads.work, Severity.WARNING if warned else Severity.INFO)


def _uneven_data(measures: Measures, uneven: Uneven) -> Finding:
    compared = measures.joined.ranks if measures.joined else ()
    stragglers = [
        straggler for straggler in measures.stragglers or () if straggler.rank in uneven.ranks
    ]
    worst = stragglers[0]
    several = len(uneven.ranks) > 1
    victims = tuple(rank for rank in compared if rank not in uneven.ranks)
    source = f"{worst.steps} steps, counted at the loader"
    compared_with = "compared with the median of the other ranks"
    return Finding(
        code="imbalance-data",
        severity=severity_of_cost(uneven.saved),
        confidence=SURE,
        title=f"{format_ranks(uneven.ranks).capitalize()} {'have' if several else 'has'} "
        f"{format_share(uneven.load / uneven.load_of_others - 1)} more {uneven.unit} in every step "
        "than the other ranks, which wait",
        cause=f"More data is more work. It explains {format_share(uneven.explained)} of the extra "
        f"time of {'these ranks' if several else 'this rank'}."
        f"{_settings(measures, uneven.ranks[0], victims)}",
        culprits=tuple(culprit_of(measures, rank) for rank in uneven.ranks),
        victims=victims,
        evidence=(
            Evidence(
                f"{uneven.unit} per step, {compared_with}",
                uneven.load,
                uneven.unit,
                uneven.load_of_others,
                source,
                format_ranks(uneven.ranks),
            ),
            Evidence(
                f"own work per step, {compared_with}",
                worst.own,
                "s",
                worst.own_of_others,
                f"{worst.steps} steps of all ranks",
                f"rank {worst.rank}",
            ),
            Evidence(
                f"time in collectives per step, {compared_with}",
                worst.in_collectives,
                "s",
                worst.in_collectives_of_others,
                f"{worst.steps} steps of all ranks",
                f"rank {worst.rank}",
            ),
        ),
        since_step=worst.since or 0,
        cost=Cost(uneven.saved, uneven.saved * worst.step_seconds),
        fixes=(
            Fix(
                "equal-batches",
                f"Give {format_ranks(uneven.ranks)} as many {uneven.unit} per step as the others",
                "The same `batch_size` on every rank and `DistributedSampler(dataset, "
                "drop_last=True)`. The global batch shrinks by the surplus.",
                Predicted(
                    1 - uneven.saved,
                    None,
                    "measured what-if: the same steps with the own work of "
                    f"{format_ranks(uneven.ranks)} at the median of the others",
                ),
            ),
            Fix(
                "share-evenly",
                f"Keep the {uneven.unit} of an update, but split them evenly",
                f"batch_size = global batch // {len(compared)} on every rank. Where ranks must "
                "have different numbers of batches, wrap the loop (DistributedDataParallel only) "
                "in `with torch.distributed.algorithms.join.Join([model]):`.",
                Predicted(
                    1 - uneven.saved_level,
                    None,
                    "measured what-if: the same steps with the work of all ranks in proportion to "
                    "equal shares",
                ),
            ),
        ),
    )


def _settings(measures: Measures, culprit: int, victims: tuple[int, ...]) -> str:
    """A sentence about the loaders' batch sizes if they are the reason; begins with a space."""
    mine = _batch_size(measures, culprit)
    others = {_batch_size(measures, rank) for rank in victims}
    if mine is None or len(others) != 1 or mine in others:
        return ""
    return f" Its loader has batch_size={mine}, the others' have batch_size={others.pop()}."


def _batch_size(measures: Measures, rank: int) -> int | None:
    known = measures.rank(rank)
    return known.metadata.loader.batch_size if known is not None else None


def _varying_data(measures: Measures, varying: Varying) -> Finding:
    compared = measures.joined.ranks if measures.joined else ()
    count = len(measures.joined.steps) if measures.joined else 0
    source = f"{count} steps of all ranks, counted at the loader"
    even = 1 / max(1, len(compared))
    return Finding(
        code="imbalance-data",
        severity=severity_of_cost(varying.saved),
        confidence=SURE,
        title=f"Uneven {varying.unit} cost {format_seconds(varying.seconds)} per step: in each "
        "step the ranks wait for the one with the most",
        cause=f"The {varying.unit} per step differ between the ranks (sequences or samples of "
        "different size), and so does their work. No rank is slower by itself.",
        victims=compared,
        evidence=(
            Evidence(
                f"most {varying.unit} of a rank in a step, as a multiple of the mean of the ranks",
                varying.most,
                "times",
                1.0,
                source,
                format_ranks(compared),
            ),
            Evidence(
                f"correlation of {varying.unit} and own work over steps and ranks",
                varying.correlation,
                "fraction",
                0.0,
                source,
            ),
            Evidence(
                f"share of steps in which the slowest rank had the most {varying.unit}",
                varying.slowest_has_most,
                "fraction",
                even,
                source,
            ),
        ),
        since_step=0,
        cost=Cost(varying.saved, varying.seconds),
        fixes=(
            _batches_of_similar_size(
                varying.saved, f"equal {varying.unit} on all ranks; less padding saves more"
            ),
        ),
    )


def _varying_work(measures: Measures, work: VaryingWork, severity: Severity) -> Finding:
    compared = measures.joined.ranks if measures.joined else ()
    count = len(measures.joined.steps) if measures.joined else 0
    source, where = f"{count} steps of all ranks", format_ranks(compared)
    return Finding(
        code="imbalance-data",
        severity=severity,
        confidence=SURE_BY_WORK,
        title=f"Uneven work costs {format_seconds(work.seconds)} per step: in each step the ranks "
        "wait for another one",
        cause="In a step in which a rank works longer, its forward pass and its backward pass both "
        "take longer, and the next step is another rank's turn: the batches differ in size "
        "(sequence lengths, experts, padding). Their size was not counted. No rank is slower by "
        f"itself.{STAGES if work.in_stages else ''}",
        victims=compared,
        evidence=(
            Evidence(
                "most work of a rank in a step, as a multiple of "
                + ("its usual share" if work.in_stages else "the mean of the ranks"),
                work.longest,
                "times",
                1.0,
                source,
                where,
            ),
            Evidence(
                "correlation of forward and backward passes over steps and ranks",
                work.both_passes,
                "fraction",
                0.0,
                source,
            ),
            Evidence(
                "share of steps in which the same rank is the slowest, at most",
                work.slowest_most_often,
                "fraction",
                1 / max(1, len(compared)),
                source,
            ),
        ),
        since_step=0,
        cost=Cost(work.saved, work.seconds),
        fixes=(
            _batches_of_similar_size(
                work.saved,
                "even work in all pipelines" if work.in_stages else "equal work on all ranks",
            ),
        ),
    )


def _batches_of_similar_size(saved: float, even: str) -> Fix:
    """`saved`: the share of the step time that it saves; `even`: what the what-if assumes."""
    return Fix(
        "bucket-by-length",
        "Give all ranks batches of similar size in each step",
        "Group samples of similar length: with Hugging Face, "
        "`TrainingArguments(group_by_length=True)`; with your own loader, a batch sampler that "
        "sorts a few hundred samples by length, cuts them into batches, and gives the ranks "
        "neighbouring batches. Or fill each batch up to a number of tokens instead of samples.",
        Predicted(1 - saved, None, f"measured what-if: the same steps with {even}"),
    )


SPREAD = Limit(
    "spread",
    0.05,
    "fraction",
    "minimum share of the step time that even work would save, if nothing counts the data. A "
    "choice: on short steps, what a machine does to healthy ranks costs as much.",
)

WARNED = Limit(
    "warned",
    0.10,
    "fraction",
    "the same, from which it is a warning. Neighbours on a shared machine lengthened both passes "
    "of healthy ranks, and their CPU time, by 7 % of a step of 23 ms (benchmarks.blame).",
)

RULES = (
    Rule(
        code="imbalance-data",
        family="slow",
        summary=(
            "Ranks have different amounts of data in a step, and those with less wait for those "
            "with more: always the same rank, or a different one in each step."
        ),
        measured=(
            "Samples and tokens of every step, counted at the loader. For a straggler: whether it "
            "has at least 5 % more, and whether work in proportion to that explains at least half "
            "of its excess. For a rank that changes from step to step: how own work follows the "
            "load over all steps and ranks (each minus its mean), and what equal loads would save. "
            "Where nothing counts the load, work itself shows it; in pipelines, a rank's work is "
            "compared with its usual share of the step's."
        ),
        thresholds=(
            "A straggler must pass the straggler test (`explain straggler-compute`). Otherwise: a "
            "correlation of at least 0.3 with t of at least 6, loads that differ by 2 % or more "
            "(standard deviation), and no more seconds per sample than in the mean step. By work "
            f"alone: a correlation of the two passes of at least {BOTH_PASSES:g} with t of at "
            f"least 6, on CPUs of at least {COMPUTED:g} with the thread's CPU time, and none with "
            "the step before."
        ),
        fixes=(
            "Use equal batch sizes and shards (`drop_last`), group batches by length, or use "
            "`Join` if the numbers of batches must differ."
        ),
        examine=_data,
        needs=("loads",),
        limits=(COST, SPREAD, WARNED),
        replaces=(
            "straggler-compute",
            "straggler-other",
            "straggler-input",
            "straggler-transient",
        ),
    ),
)
