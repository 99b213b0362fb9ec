"""Wrong sharding of the data: ranks train on the same samples, or shards overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.process_metadata import Loader
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_share
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.training.replication import (
    fed_as_replicas,
    loaders_of,
    takes_its_part,
)

METADATA = "process metadata"
SHARD = (
    "`sampler = DistributedSampler(dataset, shuffle=True)`; `DataLoader(dataset, ..., "
    "sampler=sampler)` without shuffle=True; and call `sampler.set_epoch(epoch)` before each epoch."
)
_ITERABLE = "_InfiniteConstantSampler"
"""The sampler that torch gives to a loader of an IterableDataset."""


# ---------------------------------------------------------------------------- data-duplicated


def _find_duplicated_data(measures: Measures, _: Limits) -> Iterable[Finding]:
    if not fed_as_replicas(measures) or takes_its_part(measures):
        return
    replicas = measures.replicas
    if not replicas.alike:
        yield from _find_repeated_order(measures)
        return
    everyone = [rank.rank for rank in measures.case.ranks]
    groups = replicas.alike
    who = (
        f"All {len(everyone)} ranks"
        if len(groups[0]) == len(everyone)
        else "; ".join(format_ranks(group) for group in groups[:4]).capitalize()
    )
    loaders = loaders_of(measures)
    cause, fix = _explain_duplicates(measures, loaders)
    wasted = sum(len(group) - 1 for group in groups if group)
    yield Finding(
        code="data-duplicated",
        severity=Severity.WARNING,
        confidence=0.97,
        title=f"{who} train on the same batches: {wasted} of {len(everyone)} ranks contribute "
        "nothing",
        cause=cause,
        victims=tuple(sorted(rank for group in groups for rank in group)),
        evidence=(
            Evidence(
                "batches that are the same on another rank",
                replicas.same_batches,
                "fraction",
                0.0,
                f"digests of {replicas.compared_batches} batches per rank",
            ),
            *_settings(loaders),
        ),
        since_step=0,
        fixes=(fix,),
    )


def _explain_duplicates(measures: Measures, loaders: Mapping[int, Loader]) -> tuple[str, Fix]:
    world = len(measures.case.ranks)
    shard = Fix("shard-the-data", "Give each rank its own shard", SHARD)
    if not loaders:
        return (
            f"Each rank generates its batches itself, and they are the same{_seeds(measures)}.",
            Fix(
                "seed-by-rank",
                "Seed each rank differently",
                "torch.manual_seed(seed + rank) after the model is created, or a torch.Generator "
                "with such a seed for the data only.",
            ),
        )
    loader = next(iter(loaders.values()))
    if loader.sampler == _ITERABLE:
        return (
            "The dataset is iterable, and each rank reads the whole stream from the start.",
            Fix(
                "shard-the-stream",
                "Let each rank read every n-th sample",
                "In the dataset's __iter__: itertools.islice(stream, rank, None, world_size) (with "
                "loader workers rank * workers + worker of world_size * workers); with Hugging "
                "Face datasets, split_dataset_by_node(dataset, rank, world_size).",
            ),
        )
    if loader.sampler_ranks is not None:
        arguments = f"num_replicas={loader.sampler_ranks}, rank={loader.sampler_rank}"
        return (
            f"The {loader.sampler} of each rank has {arguments}: it was created before the process "
            f"group, or with fixed numbers. There are {world} ranks.",
            Fix(
                "shard-by-the-group",
                "Pass the world size and rank to the sampler",
                "`DistributedSampler(dataset, num_replicas=dist.get_world_size(), "
                "rank=dist.get_rank())`, after `dist.init_process_group`.",
            ),
        )
    if loader.shuffles:
        how = f"each rank shuffles the whole dataset itself ({loader.sampler}){_seeds(measures)}"
        return f"There is no DistributedSampler: {how}.", shard
    return (
        f"There is no DistributedSampler: each rank reads the whole dataset ({loader.sampler}).",
        shard,
    )


def _seeds(measures: Measures) -> str:
    known = {rank.metadata.seed for rank in measures.case.ranks}
    if len(known) != 1 or None in known:
        return ""
    return f", from the same random seed ({known.pop()})"


def _find_repeated_order(measures: Measures) -> Iterable[Finding]:
    """`set_epoch` is missing. Ranks still get different samples, so it is only info: shuffling once
    converges nearly like shuffling in each epoch (Mishchenko et al. 2020)."""
    loaders = loaders_of(measures)
    never = loaders and all(
        loader.shuffles
        and loader.sampler_ranks
        and loader.sampler_epoch == 0
        and (loader.epochs or 0) > 1
        for loader in loaders.values()
    )
    if not never or not measures.replicas.repeats:
        return
    loader = next(iter(loaders.values()))
    yield Finding(
        code="data-duplicated",
        severity=Severity.INFO,
        confidence=0.97,
        title="Every epoch has the same batches in the same order: set_epoch is never called",
        cause=f"The {loader.sampler} shuffles by its seed and the epoch. Without set_epoch the "
        "epoch stays 0, so every epoch repeats the order of the first. Each rank still trains on "
        "its own samples, but the data are not reshuffled.",
        victims=tuple(sorted(loaders)),
        evidence=(
            Evidence("epochs started", loader.epochs, "epochs", None, METADATA),
            Evidence("epoch of the sampler", loader.sampler_epoch, "epoch", None, METADATA),
        ),
        since_step=0,
        fixes=(
            Fix(
                "set-epoch",
                "Call set_epoch before each epoch",
                "sampler.set_epoch(epoch) at the start of each epoch, before iterating the loader.",
            ),
        ),
    )


def _settings(loaders: Mapping[int, Loader]) -> tuple[Evidence, ...]:
    loader = next(iter(loaders.values()), None)
    return () if loader is None else (Evidence("sampler", loader.sampler, "class", None, METADATA),)


# --------------------------------------------------------------------------- seed-inconsistent


def _find_inconsistent_seeds(measures: Measures, _: Limits) -> Iterable[Finding]:
    loaders, world = loaders_of(measures), len(measures.case.ranks)
    seeds = {rank: loader.sampler_seed for rank, loader in loaders.items()}
    if not measures.is_flat or not loaders or None in seeds.values():
        return
    if len(set(seeds.values())) < 2 or measures.replicas.alike:
        return
    shards = {loader.sampler_rank for loader in loaders.values()}
    are_sharded = all(
        loader.sampler_ranks == world and loader.shuffles for loader in loaders.values()
    )
    sizes = {loader.dataset_length for loader in loaders.values()}
    if not are_sharded or len(shards) != world or len(sizes) != 1:
        return
    missed = (1 - 1 / world) ** world
    first_seeds = sorted(seeds.items())[:4]
    yield Finding(
        code="seed-inconsistent",
        severity=Severity.WARNING,
        confidence=0.97,
        title="The ranks' samplers have different seeds: each epoch misses about "
        f"{format_share(missed)} of the samples and repeats others",
        cause="Each rank takes its shard from its own order of the samples. Shards of one order "
        "cover the dataset; shards of different orders overlap and miss the rest.",
        victims=tuple(sorted(loaders)),
        evidence=(
            *(Evidence(f"sampler seed of rank {rank}", seed, "seed") for rank, seed in first_seeds),
            Evidence(
                "samples of an epoch that no rank gets",
                missed,
                "fraction",
                0.0,
                "formula: (1 - 1/n)^n for n ranks",
            ),
        ),
        since_step=0,
        fixes=(
            Fix(
                "one-seed",
                "Give every rank's sampler the same seed",
                "`DistributedSampler(dataset, seed=SEED)` with the same SEED on all ranks. Use "
                "seeds that depend on the rank only for augmentation and dropout "
                "(torch.manual_seed).",
            ),
        ),
    )


RULES = (
    Rule(
        code="data-duplicated",
        family="training",
        summary="Ranks train on the same samples, or every epoch has the same order.",
        measured="Each rank records digests of the first 8 batches of its first 3 epochs (some "
        "elements of their first tensors, in host memory; of the inputs of the wrapped module if "
        "there is no loader). Ranks have the same data if all digests at the same positions are "
        "equal. Not reported for constant data, for jobs with pipeline stages or groups smaller "
        "than the job, in which ranks may share a batch on purpose, and if each rank trains on its "
        "part of a common batch.",
        thresholds="All of at least 4 compared batches are equal, and a rank had at least 3 "
        "different ones: a digest of 48 bits does not repeat by chance. A missing `set_epoch` "
        "alone is info: each rank still gets its own samples, and shuffling once converges nearly "
        "like shuffling in each epoch (Mishchenko et al. 2020, arXiv 2006.05988).",
        fixes="Use a DistributedSampler and `set_epoch`; for iterable datasets read every n-th "
        "sample; for generated batches use random seeds that depend on the rank.",
        examine=_find_duplicated_data,
    ),
    Rule(
        code="seed-inconsistent",
        family="training",
        summary="The ranks' distributed samplers have different seeds, so their shards overlap and "
        "samples are missed.",
        measured="The seeds, ranks and sizes of the samplers, from each rank's process metadata.",
        thresholds="The seeds differ, and the samplers shuffle the same dataset for all ranks. The "
        "missed share is a formula: (1 - 1/n)^n of the samples for n ranks.",
        fixes="Give the sampler of every rank the same seed.",
        examine=_find_inconsistent_seeds,
    ),
)
