"""What is being trained: weights that drift apart, a loss that is no number, the learning rate."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.blame import culprit_of
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.training.replication import (
    held_as_replicas,
    strategies,
)

AVERAGING = frozenset({"PostLocalSGDOptimizer", "HierarchicalModelAverager"})
"""Classes that let replicas differ on purpose and average them now and then."""
MOST_STEPS = 0.5
"""Share of steps in which ranks must talk to each other for their weights to be equal throughout;
local SGD does so in a fraction of them."""


# -------------------------------------------------------------------------- replicas-diverged


def _diverged(measures: Measures, limits: Limits) -> Iterable[Finding]:
    found = measures.replicas
    if found.diverged_at is None or found.diverged_moments < limits["moments"]:
        return
    if not held_as_replicas(measures) or _differ_on_purpose(measures):
        return
    silent = _never_reduced(measures)
    if not silent and not _talk_in_most_steps(measures):
        return
    odd = _minority(found.factions)
    cause, how = _why_apart(measures, odd, silent=silent)
    yield Finding(
        code="replicas-diverged",
        severity=Severity.WARNING,
        confidence=0.95,
        title=f"{_who_differs(odd)}, since step {found.diverged_at} or before",
        cause=cause,
        culprits=tuple(culprit_of(measures, rank) for rank in odd),
        victims=tuple(
            sorted(rank for group in found.factions for rank in group if rank not in odd)
        ),
        evidence=(
            Evidence(
                "moments at which weights differ",
                found.diverged_moments,
                "moments",
                0,
                f"samples of all ranks' weights at {found.compared_weights} steps",
            ),
            Evidence(
                "relative difference of the sampled weights' sums",
                found.distance,
                "fraction",
                0.0,
                "the same, at the last of them",
            ),
            Evidence("groups of ranks with equal weights", len(found.factions), "groups", 1),
        ),
        since_step=found.diverged_at,
        fixes=(Fix("keep-replicas-equal", "Start equal, and reduce every gradient", how),),
    )


def _who_differs(odd: tuple[int, ...]) -> str:
    if not odd:
        return "The ranks, which should be replicas, train weights that differ"
    who = format_ranks(odd).capitalize()
    return f"{who} train{'s' if len(odd) == 1 else ''} other weights than all others"


def _differ_on_purpose(measures: Measures) -> bool:
    """A hook may reduce gradients in its own way; averagers let weights drift between averages."""
    for rank in measures.case.ranks:
        wrapped = rank.metadata.ddp
        if wrapped is not None and wrapped.comm_hook is not None:
            return True
        if any(one.kind in AVERAGING for one in rank.metadata.optimizers):
            return True
    return False


def _never_reduced(measures: Measures) -> bool:
    """A wrapped module whose gradients no pass has ever reduced: it is called past its wrapper, or
    always under `no_sync`."""
    told = [rank.metadata.ddp for rank in measures.case.ranks]
    return all(one is not None and one.synced == 0 for one in told)


def _talk_in_most_steps(measures: Measures) -> bool:
    for rank in measures.case.ranks:
        sequence = rank.steps["group_seq"].astype(np.int64)
        if len(sequence) < 2 or np.mean(np.diff(sequence) > 0) < MOST_STEPS:
            return False
    return True


def _minority(factions: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The ranks outside of a majority of at least three; empty where there is none."""
    first, *others = factions
    rest = tuple(sorted(rank for group in others for rank in group))
    return rest if len(first) >= 3 and len(first) > len(rest) else ()


def _why_apart(measures: Measures, odd: tuple[int, ...], *, silent: bool) -> tuple[str, str]:
    rates = {one.lr_now for rank in measures.case.ranks for one in rank.metadata.optimizers[:1]}
    if silent:
        return (
            "No backward pass of the wrapped module has reduced its gradients: the model is called "
            "past its wrapper (`model.module(...)`), or always under `no_sync`. Each rank trains "
            "alone.",
            "Call the DistributedDataParallel object itself, model(inputs), and leave `no_sync` "
            "in the last backward pass before each optimizer step.",
        )
    if len(rates) > 1:
        told = ", ".join(f"{one:g}" for one in sorted(one for one in rates if one is not None))
        return (
            f"The ranks' learning rates differ ({told}): equal gradients move them differently.",
            "Let one schedule set the learning rate of every rank: nothing in it may depend on the "
            "rank, its own loss or its own number of batches.",
        )
    by_hand = "ddp" not in strategies(measures)
    who = format_ranks(odd).capitalize() if odd else "Each rank"
    if by_hand:
        return (
            f"{who} began with other weights, or a parameter's gradient is never reduced: the "
            "script reduces gradients by itself, and nothing else keeps the replicas equal.",
            "for p in model.parameters(): dist.broadcast(p.data, src=0) before training; then "
            "dist.all_reduce(p.grad) for every parameter in every step. Or wrap the model in "
            "DistributedDataParallel, which does both.",
        )
    return (
        f"{who} changed weights past DistributedDataParallel: a checkpoint loaded or layers "
        "initialised after wrapping, weights that are updated but not part of the wrapped module, "
        "or an optimizer that treats equal gradients differently.",
        "Load checkpoints and initialise before wrapping (or broadcast afterwards), and give the "
        "optimizer the wrapped module's parameters alone.",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="replicas-diverged",
        family="training",
        summary="Ranks that should train the same weights do not: their parameters differ.",
        measured="At steps 20, 40, 80, … 1280 and then each thousandth, each rank leaves a digest "
        "of some elements of up to 64 parameters. Only digests of the same step, collective and "
        "number of updates are compared. Weights on a device are not looked at, as reading them "
        "would wait for it; nor are sharded ones. Silent for pipeline stages, groups smaller than "
        "the job, all-to-all exchanges (experts), communication hooks, averaging optimizers and "
        "ranks that do not talk to each other in most steps (local SGD).",
        thresholds="The sums of the sampled weights differ by more than 1e-5: float32 resolves "
        "6e-8, and CPUs of two kinds may differ in the last bits of a step. The minority is named "
        "where at least three ranks agree against it; otherwise nobody is.",
        fixes="DistributedDataParallel around all that is trained; or a broadcast at the start, "
        "and every gradient reduced in every step.",
        examine=_diverged,
        limits=(
            Limit(
                "moments",
                2,
                "moments",
                "compared moments, up to the last one, at which weights differ: one may fall "
                "between two halves of an update",
            ),
        ),
    ),
)
