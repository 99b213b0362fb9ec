"""What the ranks are fed: the same samples as others, or shards that overlap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.process_metadata import Loader
from mgpu_doctor.findings import Evidence, Finding, Fix, Severity
from mgpu_doctor.formatting import format_ranks, format_share
from mgpu_doctor.rules.rule import Limits, Rule
from mgpu_doctor.rules.training.replication import (
    fed_as_replicas,
    is_flat,
    loaders_of,
    takes_its_part,
)

BIRTH = "birth certificate"
SHARD = (
    "sampler = DistributedSampler(dataset, shuffle=True); DataLoader(dataset, ..., "
    "sampler=sampler) without shuffle=True; and sampler.set_epoch(epoch) before each epoch."
)
_ITERABLE = "_InfiniteConstantSampler"
"""What torch gives a loader of an IterableDataset."""


# ---------------------------------------------------------------------------- data-duplicated


def _duplicated(measures: Measures, _: Limits) -> Iterable[Finding]:
    if not fed_as_replicas(measures) or takes_its_part(measures):
        return
    replicas = measures.replicas
    if not replicas.alike:
        yield from _same_order(measures)
        return
    everyone = [rank.rank for rank in measures.case.ranks]
    groups = replicas.alike
    who = (
        f"All {len(everyone)} ranks"
        if len(groups[0]) == len(everyone)
        else "; ".join(format_ranks(group) for group in groups[:4]).capitalize()
    )
    loaders = loaders_of(measures)
    cause, fix = _why_alike(measures, loaders)
    wasted = (
        len(everyone)
        - sum(len(group) > 0 for group in groups)
        - (len(everyone) - sum(map(len, groups)))
    )
    yield Finding(
        code="data-duplicated",
        severity=Severity.WARNING,
        confidence=0.97,
        title=f"{who} train on the same batches: "
        f"{wasted} of {len(everyone)} ranks add nothing to an update",
        cause=cause,
        victims=tuple(sorted(rank for group in groups for rank in group)),
        evidence=(
            Evidence(
                "batches that another rank saw at the same place",
                replicas.same_batches,
                "fraction",
                0.0,
                f"digests of {replicas.compared_batches} batches of each rank",
            ),
            *_settings(loaders),
        ),
        since_step=0,
        fixes=(fix,),
    )


def _why_alike(measures: Measures, loaders: Mapping[int, Loader]) -> tuple[str, Fix]:
    world = len(measures.case.ranks)
    shard = Fix("shard-the-data", "Give each rank a part of its own", SHARD)
    if not loaders:
        return (
            f"Each rank makes its batches itself, and they are the same ones{_seeds(measures)}.",
            Fix(
                "seed-by-rank",
                "Let each rank draw numbers of its own",
                "torch.manual_seed(seed + rank) once the model is made, or a torch.Generator with "
                "such a seed for the data alone.",
            ),
        )
    one = next(iter(loaders.values()))
    if one.sampler == _ITERABLE:
        return (
            "The dataset is iterable, and each rank reads the whole stream from its beginning.",
            Fix(
                "shard-the-stream",
                "Let each rank take every n-th sample",
                "In the dataset's __iter__: itertools.islice(stream, rank, None, world_size) (with "
                "loader workers rank * workers + worker of world_size * workers); with Hugging "
                "Face datasets, split_dataset_by_node(dataset, rank, world_size).",
            ),
        )
    if one.sampler_ranks is not None:
        told = f"num_replicas={one.sampler_ranks}, rank={one.sampler_rank}"
        return (
            f"The {one.sampler} of each of them is told {told}: it was made before the process "
            f"group was, or with fixed numbers. There are {world} ranks.",
            Fix(
                "shard-by-the-group",
                "Let the sampler know the ranks",
                "DistributedSampler(dataset, num_replicas=dist.get_world_size(), "
                "rank=dist.get_rank()), after dist.init_process_group.",
            ),
        )
    if one.shuffles:
        how = f"each rank shuffles the whole dataset itself ({one.sampler}){_seeds(measures)}"
        return f"There is no DistributedSampler: {how}.", shard
    return (
        f"There is no DistributedSampler: each rank reads the whole dataset ({one.sampler}).",
        shard,
    )


def _seeds(measures: Measures) -> str:
    known = {rank.metadata.seed for rank in measures.case.ranks}
    if len(known) != 1 or None in known:
        return ""
    return f", from the same random seed ({known.pop()})"


def _same_order(measures: Measures) -> Iterable[Finding]:
    """`set_epoch` is missing. Ranks see different samples, so it is no more than worth knowing:
    shuffling once converges nearly like shuffling each epoch (Mishchenko et al. 2020)."""
    loaders = loaders_of(measures)
    never = loaders and all(
        one.shuffles and one.sampler_ranks and one.sampler_epoch == 0 and (one.epochs or 0) > 1
        for one in loaders.values()
    )
    if not never or not measures.replicas.repeats:
        return
    one = next(iter(loaders.values()))
    yield Finding(
        code="data-duplicated",
        severity=Severity.INFO,
        confidence=0.97,
        title="Every epoch brings the same batches in the same order: set_epoch is never called",
        cause=f"The {one.sampler} shuffles by its seed and the epoch that it is told, and it is "
        "told none: the order of the first epoch comes again each time. The ranks' samples differ, "
        "so that training goes on; the shuffling that was asked for does not happen.",
        victims=tuple(sorted(loaders)),
        evidence=(
            Evidence("epochs begun", one.epochs, "epochs", None, BIRTH),
            Evidence("epoch that the sampler knows", one.sampler_epoch, "epoch", None, BIRTH),
        ),
        since_step=0,
        fixes=(
            Fix(
                "set-epoch",
                "Tell the sampler the epoch",
                "sampler.set_epoch(epoch) at the top of each epoch, before the loader is iterated.",
            ),
        ),
    )


def _settings(loaders: Mapping[int, Loader]) -> tuple[Evidence, ...]:
    one = next(iter(loaders.values()), None)
    return () if one is None else (Evidence("sampler", one.sampler, "class", None, BIRTH),)


# --------------------------------------------------------------------------- seed-inconsistent


def _inconsistent(measures: Measures, _: Limits) -> Iterable[Finding]:
    loaders, world = loaders_of(measures), len(measures.case.ranks)
    seeds = {rank: one.sampler_seed for rank, one in loaders.items()}
    if not is_flat(measures) or not loaders or None in seeds.values():
        return
    if len(set(seeds.values())) < 2 or measures.replicas.alike:
        return
    shards = {one.sampler_rank for one in loaders.values()}
    shares = all(one.sampler_ranks == world and one.shuffles for one in loaders.values())
    sizes = {one.dataset_length for one in loaders.values()}
    if not shares or len(shards) != world or len(sizes) != 1:
        return
    missed = (1 - 1 / world) ** world
    told = sorted(seeds.items())[:4]
    yield Finding(
        code="seed-inconsistent",
        severity=Severity.WARNING,
        confidence=0.97,
        title="The ranks' samplers shuffle by different seeds: each epoch misses about "
        f"{format_share(missed)} of the samples and repeats others",
        cause="Each rank takes its share of an order of its own. Shares of one order cover the "
        "dataset; shares of different orders overlap, and leave out what falls into none.",
        victims=tuple(sorted(loaders)),
        evidence=(
            *(Evidence(f"sampler's seed on rank {rank}", seed, "seed") for rank, seed in told),
            Evidence(
                "samples of an epoch that no rank sees",
                missed,
                "fraction",
                0.0,
                "formula: (1 - 1/n)^n of n ranks",
            ),
        ),
        since_step=0,
        fixes=(
            Fix(
                "one-seed",
                "Give every rank's sampler the same seed",
                "DistributedSampler(dataset, seed=SEED) with one SEED for all ranks; seeds that "
                "depend on the rank are for augmentation and dropout (torch.manual_seed).",
            ),
        ),
    )


RULES = (
    Rule(
        code="data-duplicated",
        family="training",
        summary="Ranks train on the same samples as others, or each epoch brings the same order.",
        measured="Each rank leaves digests of the first 8 batches of its first 3 epochs (some "
        "elements of their first tensors, in host memory; of the wrapped module's inputs where no "
        "loader trains). Ranks are alike where all digests at the same places are equal. Silent "
        "for constant data, for jobs with pipeline stages or groups smaller than the job, in which "
        "ranks may share a batch on purpose, and where each rank takes its part of a common batch.",
        thresholds="All of at least 4 compared batches are equal, and a rank saw at least 3 "
        "different ones: a digest of 48 bits does not repeat by chance. A missing `set_epoch` "
        "alone is info: each rank still sees samples of its own, and shuffling once converges "
        "nearly like shuffling each epoch (Mishchenko et al. 2020, arXiv 2006.05988).",
        fixes="A DistributedSampler and `set_epoch`; for iterable datasets every n-th sample; "
        "random seeds that depend on the rank for batches that are made up.",
        examine=_duplicated,
    ),
    Rule(
        code="seed-inconsistent",
        family="training",
        summary="The ranks' distributed samplers shuffle by different seeds, so that their shares "
        "overlap and samples are missed.",
        measured="The samplers' seeds, ranks and sizes, as each rank's birth certificate tells.",
        thresholds="Seeds that differ decide, where the samplers shuffle one dataset for all "
        "ranks. What is missed is a formula: (1 - 1/n)^n of the samples with n ranks.",
        fixes="The same seed for the sampler of every rank.",
        examine=_inconsistent,
    ),
)
