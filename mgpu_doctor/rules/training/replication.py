"""Whether the ranks are replicas of one model, as far as is known: rules on data and weights speak
of no other jobs."""

from __future__ import annotations

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import UNKNOWN, Loader

REPLICATED = frozenset({"ddp", "zero1"})
"""Strategies in which each rank holds the whole model."""
DEEPSPEED = frozenset({"deepspeed", *(f"deepspeed+zero{stage}" for stage in (1, 2, 3))})
"""As its engine is told, by what it divides among the ranks beside the batch."""
DATA_PARALLEL = REPLICATED | DEEPSPEED | {"fsdp", "localsgd"}
"""Strategies in which each rank should see data of its own."""
FEW_ALIKE = 0.5
"""Share of batches that ranks have in common up to which they are fed as replicas are."""


def strategies(measures: Measures) -> frozenset[str]:
    """The ranks' strategies, without a version (`fsdp2` is `fsdp`)."""
    told = {rank.metadata.strategy for rank in measures.case.ranks if rank.metadata != UNKNOWN}
    return frozenset(
        one if one in DATA_PARALLEL else one.rstrip("0123456789") for one in map(str, told)
    )


def is_flat(measures: Measures) -> bool:
    """Whether no rank depends on another but through groups of all ranks: no pipeline stages, and
    no smaller group, in which ranks may share a model or a batch on purpose."""
    ranks = measures.case.ranks
    if len(ranks) < 2 or not measures.structure.alike:
        return False
    if any(rank.metadata.sends_to or rank.metadata.receives_from for rank in ranks):
        return False
    sizes = {
        len(group.ranks)
        for rank in ranks
        for group in rank.metadata.groups
        if group.ranks is not None
    }
    return all(size < 2 or size >= len(ranks) for size in sizes)


def fed_as_replicas(measures: Measures) -> bool:
    """Whether each rank should see data of its own. Where the collectives are the script's own,
    only equal weights tell that the ranks do not share one model."""
    if not is_flat(measures):
        return False
    kinds, replicas = strategies(measures), measures.replicas
    if kinds <= DATA_PARALLEL:
        return True
    return kinds == {"manual"} and bool(replicas.compared_weights) and replicas.diverged_at is None


def held_as_replicas(measures: Measures) -> bool:
    """Whether each rank should hold the same weights. Where the collectives are the script's own,
    only different batches tell that the ranks do not share one model."""
    if not is_flat(measures) or any(rank.metadata.hands_samples_on for rank in measures.case.ranks):
        return False
    kinds, same = strategies(measures), measures.replicas.same_batches
    if kinds <= REPLICATED:
        return True
    return kinds == {"manual"} and same is not None and same < FEW_ALIKE


def training_loader(rank: Rank) -> Loader | None:
    """The first loader whose batches were seen to be trained on."""
    known = rank.metadata.loaders
    places = [row.loader for row in rank.metadata.batches]
    return known[places[0]] if places and places[0] < len(known) else None


def loaders_of(measures: Measures) -> dict[int, Loader]:
    """Each rank's loader that trains; empty where it is not known of each of them."""
    found = {rank.rank: training_loader(rank) for rank in measures.case.ranks}
    known = {number: one for number, one in found.items() if number is not None and one is not None}
    return known if len(known) == len(found) else {}


def takes_its_part(measures: Measures) -> bool:
    """Whether each rank cuts its own part out of a batch that all of them load."""
    for rank in measures.case.ranks:
        loader, inputs = training_loader(rank), rank.metadata.input_samples
        if loader is None or inputs is None or loader.batch_size is None:
            continue
        if inputs * len(measures.case.ranks) == loader.batch_size:
            return True
    return False
