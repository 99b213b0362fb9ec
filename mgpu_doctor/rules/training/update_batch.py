"""The batch of an update against the one that was asked for on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.advice import LARGER_BATCH
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.training.replication import (
    DATA_PARALLEL,
    is_flat,
    loaders_of,
    strategies,
    takes_its_part,
)

BIRTH = "birth certificate"

GLOBAL = frozenset({"global_batch", "global_batch_size", "total_batch", "total_batch_size"})
LOCAL = frozenset(
    {
        "local_batch_size",
        *(
            f"{name}per_{what}{rest}"
            for what in ("gpu", "device", "rank")
            for name, rest in (
                ("", "_batch_size"),
                ("", "_train_batch_size"),
                ("batch_size_", ""),
                ("train_batch_size_", ""),
            )
        ),
    }
)
"""Names of options that leave no doubt (Megatron-LM, Hugging Face, torchtitan and their like)."""


@dataclass(frozen=True, slots=True)
class _Asked:
    option: str
    batch: int


def _asked(argv: Sequence[str] | None, names: frozenset[str]) -> _Asked | None:
    """The last option of these names: `--name 8`, `--name=8`, `train.name=8`."""
    given = argv or ()
    found = None
    for word, following in zip(given, (*given[1:], ""), strict=False):
        option, equals, value = word.partition("=")
        value = value if equals else following
        name = option.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name in names and (equals or option.startswith("--")) and value.isdecimal():
            found = _Asked(option, int(value))
    return found


def _confused(measures: Measures, _: Limits) -> Iterable[Finding]:
    loaders, world = loaders_of(measures), len(measures.case.ranks)
    sizes = {one.batch_size for one in loaders.values()}
    replicas = measures.replicas
    if not is_flat(measures) or len(sizes) != 1 or replicas.alike or not replicas.compared_batches:
        return  # ranks that share their batches may share a model, too
    batch = sizes.pop()
    if not batch or takes_its_part(measures):
        return
    fetched = {_fetched(rank) for rank in measures.case.ranks}
    if None in fetched or len(fetched) != 1:
        return
    samples, batches = fetched.pop() or (0, 0)
    argv = measures.case.ranks[0].metadata.argv
    total, part = _asked(argv, GLOBAL), _asked(argv, LOCAL)
    if total is not None and part is None and total.batch == batch <= samples:
        yield _mistaken(total, batch, samples, world, meant=total.batch)
    if part is not None and part.batch == batch * world and (samples, batches) == (batch, 1):
        yield _mistaken(part, batch, samples, world, meant=part.batch * world)


def _fetched(rank: Rank) -> tuple[int, int] | None:
    """Samples and backward passes of this rank's usual step."""
    records = rank.steps[rank.steps["samples"] > 0] if len(rank.steps) else rank.steps
    if not len(records):
        return None
    return int(np.median(records["samples"])), int(np.median(records["micro_batches"]))


def _mistaken(asked: _Asked, batch: int, samples: int, world: int, meant: int) -> Finding:
    real = samples * world
    more = real > meant
    how = (
        f"DataLoader(..., batch_size={asked.batch} // dist.get_world_size())"
        if more
        else f"DataLoader(..., batch_size={asked.batch}): what the option says is each rank's own. "
        + LARGER_BATCH
    )
    told = "of all ranks together" if more else "of one rank"
    return Finding(
        code="batch-confusion",
        severity=Severity.WARNING,
        confidence=0.9,
        title=f"{asked.option} {asked.batch} was asked for, and an update is of {real} samples, "
        f"not {meant}",
        cause=f"The option names the batch {told}; each of the {world} ranks loads {batch} samples "
        "at once." + (" The batch of all ranks was taken for the batch of each." if more else ""),
        victims=tuple(range(world)),
        evidence=(
            Evidence(asked.option, asked.batch, "samples", None, "command line"),
            Evidence("batch size of a rank's loader", batch, "samples", None, BIRTH),
            Evidence("samples of an update", real, "samples", meant, "step records of all ranks"),
        ),
        since_step=0,
        fixes=(Fix("divide-the-batch" if more else "whole-batch", "Load what was meant", how),),
    )


RULE_OF_SCALE = frozenset({"SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"})
"""Optimizers whose learning rate is known to depend on the batch size."""
LEAST_TOLD = 20


def _unscaled(measures: Measures, limits: Limits) -> Iterable[Finding]:
    ranks = measures.case.ranks
    if not is_flat(measures) or not strategies(measures) <= DATA_PARALLEL:
        return
    known = [rank.metadata.optimizers for rank in ranks]
    if not all(len(one) == 1 for one in known):
        return
    first = known[0][0]
    default = all(one.lr and one.lr == one.lr_default == one.lr_now for (one,) in known)
    fetched = [_samples_an_update(rank) for rank in ranks]
    update = sum(one for one in fetched if one is not None)
    if not default or first.kind not in RULE_OF_SCALE or None in fetched:
        return
    if update < limits["samples"]:
        return
    yield Finding(
        code="lr-unscaled",
        severity=Severity.INFO,
        confidence=0.7,
        title=f"The learning rate is {first.kind}'s default, {first.lr:g}, for {update} samples an "
        "update",
        cause="A learning rate that fits one device's batch is small for the batch of "
        f"{len(ranks)} of them: training then takes more epochs than it need. Whether a "
        "larger one serves this model, only its validation loss tells.",
        victims=tuple(rank.rank for rank in ranks if rank.rank is not None),
        evidence=(
            Evidence("learning rate", first.lr, "", first.lr_default, "birth certificate"),
            Evidence("samples of an update", update, "samples", limits["samples"], "step records"),
        ),
        since_step=0,
        fixes=(
            Fix(
                "scale-the-rate",
                "Scale the learning rate with the batch, after a warm-up",
                f"Start from {first.lr:g} and rise over some hundred updates: linearly with the "
                f"number of ranks for SGD (towards {(first.lr or 0) * len(ranks):g}), by its "
                f"square root for Adam (towards {(first.lr or 0) * len(ranks) ** 0.5:g}); watch "
                "the validation loss.",
            ),
        ),
    )


def _samples_an_update(rank: Rank) -> int | None:
    if len(rank.steps) < LEAST_TOLD or not rank.steps["samples"].any():
        return None
    return int(np.median(rank.steps["samples"]))


RULES = (
    Rule(
        code="batch-confusion",
        family="training",
        summary="The batch size that was asked for is not the one of an update: each rank's batch "
        "was taken for that of all ranks, or the other way round.",
        measured="Options whose names leave no doubt (`--global-batch-size`, `--total-batch-size`, "
        "`--per-device-batch-size`, …) against the loader's batch size on every rank and the "
        "samples in the step records.",
        thresholds="The loader's batch size equals the asked one exactly where it should be the "
        "n-th part of it (or is the n-th part where it should be equal), on every rank.",
        fixes="Divide the global batch by the number of ranks, or pass the rank's own batch on.",
        examine=_confused,
    ),
    Rule(
        code="lr-unscaled",
        family="training",
        summary="The learning rate is the optimizer's default, though many ranks make the batch of "
        "an update large.",
        measured="The first parameter group's learning rate at the first step and now, against the "
        "default of the optimizer's class; samples of a step over all ranks.",
        thresholds="Both rates equal the default, for optimizers with a known rule of scale.",
        fixes="A larger learning rate, reached in a warm-up: linear with the batch for SGD (Goyal "
        "et al. 2017, arXiv 1706.02677), its square root for Adam (Malladi et al. 2022, arXiv "
        "2205.10287).",
        examine=_unscaled,
        limits=(
            Limit(
                "samples",
                512,
                "samples",
                "of an update over all ranks: twice the batch of 256 to which Goyal et al. refer "
                "their learning rate",
            ),
        ),
    ),
)
