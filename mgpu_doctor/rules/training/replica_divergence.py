"""Replicas whose weights differ although they should be the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.structure.replica_checks import Replicas
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.culprits import culprit_of
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.training.replication import (
    held_as_replicas,
    strategies,
)

AVERAGING = frozenset({"PostLocalSGDOptimizer", "HierarchicalModelAverager"})
"""Classes that let replicas differ on purpose and average them periodically."""
LEAST_COMMUNICATING = 0.5
"""Least share of steps with communication in which weights stay equal all the time; local SGD
communicates in a fraction of the steps."""

ALONE = (
    "No rank called a collective in any of its steps, so each trains a model of its own, unless "
    "they exchange gradients in a way that is not seen.",
    "If they should train one model: wrap it in DistributedDataParallel, or call "
    "dist.all_reduce(p.grad) for every parameter between backward and the update. A condition may "
    "skip that call: `type(p) is torch.Tensor` is false for every parameter of a module.",
)
"""Cause and fix where ranks of one process group never communicate. It may be on purpose, as for an
ensemble, so it is no warning."""


def _find_divergence(measures: Measures, limits: Limits) -> Iterable[Finding]:
    replicas = measures.replicas
    if replicas.diverged_at is None:
        return
    once = replicas.diverged_moments < limits["moments"]
    if once and not _is_sudden(replicas):
        return
    if not held_as_replicas(measures) or _differ_on_purpose(measures):
        return
    never_reduced, alone = _is_never_reduced(measures), _trains_alone(measures)
    if not (never_reduced or alone or _communicates_in_most_steps(measures)):
        return
    minority = () if alone else _find_minority(replicas.factions) or replicas.jumped
    cause, how = ALONE if alone else _explain(measures, minority, never_reduced=never_reduced)
    doubtful = alone or (once and not replicas.jumped)
    yield Finding(
        code="replicas-diverged",
        severity=Severity.INFO if doubtful else Severity.WARNING,
        confidence=0.6 if doubtful else 0.95,
        title=f"{_describe_difference(minority)}, from step {replicas.diverged_at} on or earlier",
        cause=cause,
        culprits=tuple(culprit_of(measures, rank) for rank in minority),
        victims=tuple(
            sorted(rank for group in replicas.factions for rank in group if rank not in minority)
        ),
        evidence=(
            Evidence(
                "compared steps at which weights differ",
                replicas.diverged_moments,
                "moments",
                0,
                f"samples of all ranks' weights at {replicas.compared_weights} steps",
            ),
            Evidence(
                "relative difference of the sums of the sampled weights",
                replicas.distance,
                "fraction",
                0.0,
                "the same, at the last compared step",
            ),
            Evidence("groups of ranks with equal weights", len(replicas.factions), "groups", 1),
        ),
        since_step=replicas.diverged_at,
        fixes=(
            Fix("keep-replicas-equal", "Start with equal weights and reduce every gradient", how),
        ),
    )


def _is_sudden(replicas: Replicas) -> bool:
    """Whether one comparison is enough: all were equal to the last bit before, and either some
    ranks left the rest, or there are only two. Rank 0 may have loaded other weights on purpose, to
    save or evaluate them: alone it is no finding, and one of two is no warning."""
    if replicas.jumped:
        return replicas.jumped != (0,)
    return replicas.were_equal and sum(map(len, replicas.factions)) == 2


def _describe_difference(minority: tuple[int, ...]) -> str:
    if not minority:
        return "The weights differ between ranks that should be replicas"
    return f"The weights of {format_ranks(minority)} differ from those of all others"


def _differ_on_purpose(measures: Measures) -> bool:
    """Whether a communication hook may reduce gradients differently, or weights are only averaged
    periodically."""
    for rank in measures.case.ranks:
        wrapped = rank.metadata.ddp
        if wrapped is not None and wrapped.comm_hook is not None:
            return True
        if any(optimizer.kind in AVERAGING for optimizer in rank.metadata.optimizers):
            return True
    return False


def _is_never_reduced(measures: Measures) -> bool:
    """Whether no backward pass ever reduced the gradients of the wrapped module: the wrapper is
    bypassed, or `no_sync` is always on."""
    wrapped = [rank.metadata.ddp for rank in measures.case.ranks]
    return all(ddp is not None and ddp.synced == 0 for ddp in wrapped)


def _trains_alone(measures: Measures) -> bool:
    """Whether the ranks share a process group, but none has communicated in any of its steps."""
    return strategies(measures) == {"manual"} and all(
        rank.metadata.backend is not None
        and not np.any(rank.steps["collectives"])
        and len(np.unique(rank.steps["group_seq"])) == 1
        for rank in measures.case.ranks
    )


def _communicates_in_most_steps(measures: Measures) -> bool:
    for rank in measures.case.ranks:
        sequence = rank.steps["group_seq"].astype(np.int64)
        if len(sequence) < 2 or np.mean(np.diff(sequence) > 0) < LEAST_COMMUNICATING:
            return False
    return True


def _find_minority(factions: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The ranks outside a majority of at least three; empty if there is none."""
    first, *others = factions
    rest = tuple(sorted(rank for group in others for rank in group))
    return rest if len(first) >= 3 and len(first) > len(rest) else ()


def _explain(
    measures: Measures, minority: tuple[int, ...], *, never_reduced: bool
) -> tuple[str, str]:
    rates = {
        optimizer.lr_now
        for rank in measures.case.ranks
        for optimizer in rank.metadata.optimizers[:1]
    }
    if never_reduced:
        return (
            "No backward pass of the wrapped module has reduced its gradients: the wrapper is "
            "bypassed (`model.module(...)`), or `no_sync` is always on. Each rank trains alone.",
            "Call the DistributedDataParallel object itself, model(inputs), and leave `no_sync` "
            "before the last backward pass of each optimizer step.",
        )
    if len(rates) > 1:
        listed = ", ".join(f"{rate:g}" for rate in sorted(r for r in rates if r is not None))
        return (
            f"The ranks' learning rates differ ({listed}), so equal gradients change the weights "
            "differently.",
            "Use the same learning-rate schedule on every rank: it must not depend on the rank, "
            "its loss or its number of batches.",
        )
    by_hand = "ddp" not in strategies(measures)
    who = format_ranks(minority).capitalize() if minority else "Each rank"
    if by_hand:
        return (
            f"{who} started with different weights, or the gradient of a parameter is never "
            "reduced: the script reduces gradients itself, and nothing else keeps the replicas "
            "equal.",
            "`for p in model.parameters(): dist.broadcast(p.data, src=0)` before training; then "
            "`dist.all_reduce(p.grad)` for every parameter in every step. Or wrap the model in "
            "DistributedDataParallel, which does both.",
        )
    return (
        f"{who} changed weights outside DistributedDataParallel: a checkpoint was loaded or layers "
        "were initialized after wrapping, weights are updated that are not part of the wrapped "
        "module, or an optimizer treats equal gradients differently.",
        "Load checkpoints and initialize before wrapping (or broadcast afterwards), and give the "
        "optimizer only the parameters of the wrapped module.",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        code="replicas-diverged",
        family="training",
        summary="The weights of ranks that should be replicas differ.",
        measured="At steps 5, 10, 20, … 640, then every 500 steps, and when it ends, each rank "
        "records a digest of some elements of up to 64 parameters. Only digests of the same step, "
        "collective and number of updates are compared. Weights on a device are not read, because "
        "that would wait for the device; nor are sharded weights. Not reported for pipeline "
        "stages, groups smaller than the job, all-to-all exchanges (experts), communication hooks, "
        "averaging optimizers and ranks that do not communicate in most steps (local SGD). Ranks "
        "of a process group that never communicate get no warning: they may be an ensemble.",
        thresholds="The sums of the sampled weights differ by more than 1e-5: float32 resolves "
        "6e-8, and CPUs of two kinds may differ in the last bits of a step. A minority is blamed "
        "if at least three ranks agree against it, or if all were equal to the last bit before and "
        "the others, at least two and the majority, still are. Otherwise no rank is.",
        fixes="Wrap everything that is trained in DistributedDataParallel, or broadcast the "
        "weights at the start and reduce every gradient in every step.",
        examine=_find_divergence,
        limits=(
            Limit(
                "moments",
                2,
                "moments",
                "compared steps, up to the last one, at which weights differ; a single one may be "
                "weights that were loaded at the end. One is enough if all weights were equal to "
                "the last bit before, most ranks still agree, and not rank 0 alone differs (it may "
                "have loaded weights to save or evaluate them); or, without a warning, if there "
                "are only two ranks.",
            ),
        ),
    ),
)
