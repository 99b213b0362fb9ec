"""The batch size of an update: not the one on the command line, or large for the learning rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.rules.advice import LARGER_BATCH
from mgpu_doctor.rules.rule import Limit, Limits, Rule
from mgpu_doctor.rules.training.replication import (
    DATA_PARALLEL,
    loaders_of,
    strategies,
    takes_its_part,
)

METADATA = "process metadata"

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
"""Unambiguous names of options (of Megatron-LM, Hugging Face, torchtitan and others)."""


# -------------------------------------------------------------------------------- batch-confusion


@dataclass(frozen=True, slots=True)
class _BatchOption:
    name: str
    batch: int


def _find_batch_confusion(measures: Measures, _: Limits) -> Iterable[Finding]:
    loaders, world = loaders_of(measures), len(measures.case.ranks)
    sizes = {loader.batch_size for loader in loaders.values()}
    replicas = measures.replicas
    if not measures.is_flat or len(sizes) != 1 or replicas.alike or not replicas.compared_batches:
        return  # ranks that share their batches may share a model, too
    batch = sizes.pop()
    if not batch or takes_its_part(measures):
        return
    steps = {_usual_step(rank) for rank in measures.case.ranks}
    if None in steps or len(steps) != 1:
        return
    samples, batches = steps.pop() or (0, 0)
    argv = measures.case.ranks[0].metadata.argv
    total, local = _find_option(argv, GLOBAL), _find_option(argv, LOCAL)
    if total is not None and local is None and total.batch == batch <= samples:
        yield _report_confusion(total, batch, samples, world, meant=total.batch)
    if local is not None and local.batch == batch * world and (samples, batches) == (batch, 1):
        yield _report_confusion(local, batch, samples, world, meant=local.batch * world)


def _find_option(argv: Sequence[str] | None, names: frozenset[str]) -> _BatchOption | None:
    """The last option of these names: `--name 8`, `--name=8`, `train.name=8`."""
    words = argv or ()
    batch_option = None
    for word, following in zip(words, (*words[1:], ""), strict=False):
        option, equals, value = word.partition("=")
        value = value if equals else following
        name = option.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()
        if name in names and (equals or option.startswith("--")) and value.isdecimal():
            batch_option = _BatchOption(option, int(value))
    return batch_option


def _usual_step(rank: Rank) -> tuple[int, int] | None:
    """Samples and backward passes of this rank's usual step."""
    records = rank.steps[rank.steps["samples"] > 0] if len(rank.steps) else rank.steps
    if not len(records):
        return None
    return int(np.median(records["samples"])), int(np.median(records["micro_batches"]))


def _report_confusion(
    option: _BatchOption, batch: int, samples: int, world: int, meant: int
) -> Finding:
    real = samples * world
    is_too_large = real > meant
    if is_too_large:
        meaning = "all ranks together"
        mistake = " The global batch size was used as the batch size of each rank."
        how = f"DataLoader(..., batch_size={option.batch} // dist.get_world_size())"
    else:
        meaning, mistake = "one rank", ""
        how = (
            f"`DataLoader(..., batch_size={option.batch})`: the option is the batch size of each "
            f"rank. {LARGER_BATCH}"
        )
    return Finding(
        code="batch-confusion",
        severity=Severity.WARNING,
        confidence=0.9,
        title=f"{option.name} is {option.batch}, but an update uses {real} samples, not {meant}",
        cause=f"The option is the batch size of {meaning}; each of the {world} ranks loads {batch} "
        f"samples at once.{mistake}",
        victims=tuple(range(world)),
        evidence=(
            Evidence(option.name, option.batch, "samples", None, "command line"),
            Evidence("batch size of a rank's loader", batch, "samples", None, METADATA),
            Evidence("samples per update", real, "samples", meant, "step records of all ranks"),
        ),
        since_step=0,
        fixes=(
            Fix(
                "divide-the-batch" if is_too_large else "whole-batch",
                "Load the intended batch size",
                how,
            ),
        ),
    )


# ------------------------------------------------------------------------------------ lr-unscaled

SCALING_OPTIMIZERS = frozenset({"SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"})
"""Optimizers whose learning rate is known to depend on the batch size."""
LEAST_STEPS = 20
"""Steps before the usual number of samples counts as known."""


def _find_unscaled_rate(measures: Measures, limits: Limits) -> Iterable[Finding]:
    ranks = measures.case.ranks
    if not measures.is_flat or not strategies(measures) <= DATA_PARALLEL:
        return
    optimizers = [rank.metadata.optimizers for rank in ranks]
    if not all(len(of_rank) == 1 for of_rank in optimizers):
        return
    first = optimizers[0][0]
    is_default = all(
        optimizer.lr and optimizer.lr == optimizer.lr_default == optimizer.lr_now
        for (optimizer,) in optimizers
    )
    samples = [_samples_per_step(rank) for rank in ranks]
    update = sum(count for count in samples if count is not None)
    if not is_default or first.kind not in SCALING_OPTIMIZERS or None in samples:
        return
    if update < limits["samples"]:
        return
    yield Finding(
        code="lr-unscaled",
        severity=Severity.INFO,
        confidence=0.7,
        title=f"The learning rate is {first.kind}'s default, {first.lr:g}, at {update} samples per "
        "update",
        cause="A learning rate that fits the batch of one device is small for the batch of "
        f"{len(ranks)}, so training may take more epochs than necessary. Only the validation loss "
        "shows whether a larger one suits this model.",
        victims=tuple(rank.rank for rank in ranks if rank.rank is not None),
        evidence=(
            Evidence("learning rate", first.lr, "", first.lr_default, METADATA),
            Evidence("samples per update", update, "samples", limits["samples"], "step records"),
        ),
        since_step=0,
        fixes=(
            Fix(
                "scale-the-rate",
                "Scale the learning rate with the batch size, after a warm-up",
                f"Start at {first.lr:g} and increase it over some hundred updates: linearly with "
                f"the number of ranks for SGD (towards {(first.lr or 0) * len(ranks):g}), by its "
                f"square root for Adam (towards {(first.lr or 0) * len(ranks) ** 0.5:g}); watch "
                "the validation loss.",
            ),
        ),
    )


def _samples_per_step(rank: Rank) -> int | None:
    steps = timed(rank.steps)
    if len(steps) < LEAST_STEPS or not steps["samples"].any():
        return None
    return int(np.median(steps["samples"]))


RULES = (
    Rule(
        code="batch-confusion",
        family="training",
        summary="The batch size on the command line differs from that of an update: the global "
        "batch size was used for each rank, or the reverse.",
        measured="Options with unambiguous names (`--global-batch-size`, `--total-batch-size`, "
        "`--per-device-batch-size`, …) are compared with the loader's batch size on every rank and "
        "with the samples in the step records.",
        thresholds="On every rank, the loader's batch size equals the option although it should be "
        "divided by the world size, or is divided although it should be equal.",
        fixes="Divide the global batch size by the number of ranks, or pass the local batch size "
        "on unchanged.",
        examine=_find_batch_confusion,
    ),
    Rule(
        code="lr-unscaled",
        family="training",
        summary="The learning rate is the optimizer's default although many ranks make the batch "
        "large.",
        measured="The learning rate of the first parameter group at the first step and now is "
        "compared with the default of the optimizer's class; the samples per step are added up "
        "over all ranks.",
        thresholds="Both rates equal the default, for optimizers with a known scaling rule.",
        fixes="Use a larger learning rate, reached in a warm-up: linear with the batch size for "
        "SGD (Goyal et al. 2017, arXiv 1706.02677), by its square root for Adam (Malladi et al. "
        "2022, arXiv 2205.10287).",
        examine=_find_unscaled_rate,
        limits=(
            Limit(
                "samples",
                512,
                "samples",
                "samples per update over all ranks: twice the batch of 256 for which Goyal et al. "
                "state their learning rate.",
            ),
        ),
    ),
)
