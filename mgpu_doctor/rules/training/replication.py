"""Whether the ranks are replicas of one model; rules about data and weights apply only then."""

from __future__ import annotations

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import UNKNOWN, Loader

REPLICATED = frozenset({"ddp", "zero1"})
"""Strategies in which each rank holds the whole model."""
DEEPSPEED = frozenset({"deepspeed", *(f"deepspeed+zero{stage}" for stage in (1, 2, 3))})
"""DeepSpeed's engine, by what it shards besides the batch."""
DATA_PARALLEL = REPLICATED | DEEPSPEED | {"fsdp", "localsgd"}
"""Strategies in which each rank should get its own data."""
FEW_ALIKE = 0.5
"""Share of common batches up to which ranks count as fed like replicas."""


def strategies(measures: Measures) -> frozenset[str]:
    """The strategies in the process metadata, without a version (`fsdp2` is `fsdp`)."""
    names = {
        str(rank.metadata.strategy) for rank in measures.case.ranks if rank.metadata != UNKNOWN
    }
    return frozenset(name if name in DATA_PARALLEL else name.rstrip("0123456789") for name in names)


def fed_as_replicas(measures: Measures) -> bool:
    """Whether each rank should get its own data. If the script calls collectives itself, only equal
    weights show that the ranks do not share one model."""
    if not measures.is_flat:
        return False
    kinds, replicas = strategies(measures), measures.replicas
    if kinds <= DATA_PARALLEL:
        return True
    return kinds == {"manual"} and bool(replicas.compared_weights) and replicas.diverged_at is None


def held_as_replicas(measures: Measures) -> bool:
    """Whether each rank should hold the same weights. If the script calls collectives itself, only
    different batches show that the ranks do not share one model."""
    if not measures.is_flat or any(rank.metadata.hands_samples_on for rank in measures.case.ranks):
        return False
    kinds, same = strategies(measures), measures.replicas.same_batches
    if kinds <= REPLICATED:
        return True
    return kinds == {"manual"} and same is not None and same < FEW_ALIKE


def training_loader(rank: Rank) -> Loader | None:
    """The first data loader whose batches are trained on."""
    known = rank.metadata.loaders
    places = [row.loader for row in rank.metadata.batches]
    return known[places[0]] if places and places[0] < len(known) else None


def loaders_of(measures: Measures) -> dict[int, Loader]:
    """Rank -> its training data loader; empty unless it is known for every rank."""
    loaders = {rank.rank: training_loader(rank) for rank in measures.case.ranks}
    known = {
        rank: loader for rank, loader in loaders.items() if rank is not None and loader is not None
    }
    return known if len(known) == len(loaders) else {}


def takes_its_part(measures: Measures) -> bool:
    """Whether all ranks load the same batch and each trains on its own part of it."""
    for rank in measures.case.ranks:
        loader, inputs = training_loader(rank), rank.metadata.input_samples
        if loader is None or inputs is None:
            continue
        if inputs * len(measures.case.ranks) in (loader.batch_size, rank.metadata.batch_samples):
            return True
    return False
