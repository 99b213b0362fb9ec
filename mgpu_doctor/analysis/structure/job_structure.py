"""How the ranks of a job depend on each other: same work, stages, parameter servers. Pure.

Data-parallel, sharded and tensor-parallel ranks all do the same and meet in collectives. The
stages of a pipeline do different work and hand it on point to point: activations to the next
stage, gradients back. So a pipeline is a chain of ranks that send to each other in both
directions, and a job of several pipelines is several chains of one length. A parameter server
updates weights with the gradients of other ranks and has none of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from mgpu_probes.inprocess.layout import NO_OPTIMIZER

from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.record_chunks import chunks

Neighbours = Mapping[int, frozenset[int]]

MOST_NEIGHBOURS = 2
"""Neighbours of a rank in a chain: the previous and the next stage."""
NO_BUBBLE = ("ZeroBubble", "DualPipe")
"""Parts of the names of schedules that fill the bubble with gradients of weights."""
AVERAGED = frozenset({"ddp", "fsdp", "zero1", "localsgd"})
"""Strategies whose ranks all hold the same model."""


@dataclass(frozen=True, slots=True)
class Structure:
    """Roles of ranks. Ranks of one role do the same work and can be compared."""

    roles: Mapping[int, int] = field(default_factory=dict)
    """Rank -> role: its pipeline stage; empty where all ranks do the same."""
    micro_batches: int | None = None
    """Micro-batches in which a batch passes through a pipeline; None: unknown."""
    passes: float | None = None
    """In how many parts a rank does its work of a batch: those of each of its stages. Infinite
    where the schedule leaves no bubble."""
    parameters: Mapping[int, int] = field(default_factory=dict)
    """Rank -> parameters that its optimizers update; ranks whose number is unknown are left out."""

    independent: bool = False
    """The ranks have no process group, so none waits for another or is compared with one."""

    @property
    def alike(self) -> bool:
        """Whether all ranks do the same work, as far as they can be compared."""
        return len(set(self.roles.values())) < 2 and not self.independent

    @property
    def stages(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each role; empty where all do the same."""
        if self.alike:
            return ()
        return tuple(
            tuple(sorted(rank for rank, role in self.roles.items() if role == each))
            for each in sorted(set(self.roles.values()))
        )


def structure_of(ranks: Sequence[Rank]) -> Structure:
    """The structure by process metadata and step records.

    The stage that a rank itself knows comes first, then its place in the chain of those who send to
    each other. Where not every rank has such a place, all count as alike: a message now and then is
    no pipeline, nor is one in a single direction (ring attention, a parameter server).
    """
    if are_independent(ranks):
        return Structure(independent=True)
    roles = _known_stages(ranks) or _placed(ranks)
    if not roles:
        return Structure()
    return Structure(roles, *_batches(ranks), dict(_parameters(ranks)))


def _known_stages(ranks: Sequence[Rank]) -> dict[int, int]:
    stages = {rank.rank: rank.stage for rank in ranks if rank.rank is not None}
    known = {number: stage for number, stage in stages.items() if stage is not None and stage >= 0}
    return known if len(known) == len(stages) else {}


def _placed(ranks: Sequence[Rank]) -> dict[int, int]:
    neighbours = _neighbours(ranks)
    chains = list(_chains(neighbours))
    lengths = {len(chain) for chain in chains}
    placed = {rank for chain in chains for rank in chain}
    everybody = {rank.rank for rank in ranks if rank.rank is not None}
    if len(lengths) != 1 or not everybody <= placed:
        return {}
    if len(chains) == 1 and (_hold_one_model(ranks) or _some_only_hand_out(ranks)):
        return {}
    return {rank: place for chain in chains for place, rank in enumerate(chain)}


def _hold_one_model(ranks: Sequence[Rank]) -> bool:
    """Whether all ranks average their gradients, and what they send each other is something else
    (ring attention between two ranks goes both ways)."""
    words = {word for rank in ranks for word in str(rank.metadata.strategy).split("+")}
    averaged = words & AVERAGED or any(rank.metadata.ddp is not None for rank in ranks)
    return "pipeline" not in words and bool(averaged)


def _neighbours(ranks: Sequence[Rank]) -> Neighbours:
    """Rank -> ranks with which it exchanges messages in both directions, as either side reports."""
    sent = set[tuple[int, int]]()
    for member in ranks:
        if member.rank is not None:
            sent |= {(member.rank, other) for other in member.metadata.sends_to}
            sent |= {(other, member.rank) for other in member.metadata.receives_from}
    mutual: dict[int, set[int]] = {}
    for sender, receiver in sent:
        if sender != receiver and (receiver, sender) in sent:
            mutual.setdefault(sender, set()).add(receiver)
    return {rank: frozenset(others) for rank, others in mutual.items()}


def _chains(neighbours: Neighbours) -> Iterable[tuple[int, ...]]:
    """The paths and rings among the ranks, from the end (of a ring: the rank) with the lowest
    number; a rank with more than two neighbours is part of none."""
    seen = set[int]()
    for start in sorted(neighbours, key=lambda rank: (len(neighbours[rank]), rank)):
        if start in seen:
            continue
        chain, ahead = [start], set(neighbours[start])
        seen.add(start)
        while ahead := {rank for rank in ahead if rank not in seen}:
            chain.append(min(ahead))
            seen.add(chain[-1])
            ahead = set(neighbours[chain[-1]])
        if len(chain) > 1 and all(len(neighbours[rank]) <= MOST_NEIGHBOURS for rank in chain):
            yield tuple(chain)


def _some_only_hand_out(ranks: Sequence[Rank]) -> bool:
    """Whether some ranks have no backward pass of their own and others have: parameter servers."""
    if any(rank.metadata.pipeline is not None for rank in ranks):
        return False
    passes = _backward_passes(ranks)
    return min(passes, default=0) < 1 <= max(passes, default=0)


def _batches(ranks: Sequence[Rank]) -> tuple[int | None, float | None]:
    """The number of micro-batches, and of parts of a rank's work. Without a known schedule there is
    one backward pass per micro-batch, if each rank has a single stage."""
    pipelines = [pipeline for rank in ranks if (pipeline := rank.metadata.pipeline) is not None]
    known = [pipeline.micro_batches for pipeline in pipelines if pipeline.micro_batches is not None]
    if not known:
        count = int(min(_backward_passes(ranks), default=0)) or None
        return count, count
    if any(word in (pipeline.schedule or "") for pipeline in pipelines for word in NO_BUBBLE):
        return min(known), inf
    return min(known), min(known) * min(len(pipeline.held) or 1 for pipeline in pipelines)


def _backward_passes(ranks: Sequence[Rank]) -> list[float]:
    """Median counts per step of each rank."""
    return [backward_passes(rank) for rank in ranks if len(rank.steps)]


def _parameters(ranks: Sequence[Rank]) -> Iterable[tuple[int, int]]:
    for rank in ranks:
        counts = [optimizer.parameters for optimizer in rank.metadata.optimizers]
        if rank.rank is not None and counts and None not in counts:
            yield rank.rank, sum(count or 0 for count in counts)


_NEWEST = 128
"""Steps of each rank that are looked at."""


def is_flat(ranks: Sequence[Rank], structure: Structure) -> bool:
    """Whether ranks exchange data only in groups of all ranks: there are no pipeline stages and no
    smaller groups, in which ranks may share a model or a batch on purpose."""
    if len(ranks) < 2 or not structure.alike:
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


def servers(ranks: Sequence[Rank]) -> frozenset[int]:
    """The ranks that only serve: they never run backward, and exchange messages with ranks that do.
    They update in most of their steps, unless they only answer remote calls, in threads of which
    one is watched."""
    if any(rank.metadata.pipeline is not None for rank in ranks):
        return frozenset()  # a schedule without bubbles runs no backward pass that counts as one
    idle = [
        rank
        for rank, runs_backward in zip(ranks, _run_backward(ranks), strict=True)
        if not runs_backward and rank.rank is not None and _only_serves(rank)
    ]
    if not idle:
        return frozenset()
    workers = [rank for rank in ranks if len(rank.steps) and backward_passes(rank) >= 1]
    numbers = {worker.rank for worker in workers}
    asked = {other for worker in workers for other in worker.metadata.sends_to}
    return frozenset(
        rank.rank
        for rank in idle
        if rank.rank is not None
        and (rank.rank in asked or not numbers.isdisjoint(rank.metadata.sends_to))
    )


def without(ranks: Sequence[Rank], serving: frozenset[int]) -> tuple[Rank, ...]:
    """The ranks that do not serve."""
    return tuple(rank for rank in ranks if rank.rank not in serving)


def backward_passes(rank: Rank) -> float:
    """The median count per step."""
    return float(np.median(timed(rank.steps)["micro_batches"]))


def _run_backward(ranks: Sequence[Rank]) -> list[bool]:
    """For each rank, whether it did in one of its newest timed steps."""
    runs = np.zeros(len(ranks), dtype=np.bool_)
    for chunk in chunks([timed(rank.steps) for rank in ranks]):
        runs[chunk.places] = chunk["micro_batches"][:, -_NEWEST:].any(axis=1)
    return [bool(each) for each in runs]


def _only_serves(rank: Rank) -> bool:
    """Whether a rank that does not run backward serves."""
    newest = timed(rank.steps)[-_NEWEST:]
    exchanges = rank.metadata.sends_to or rank.metadata.receives_from
    answers_calls = not exchanges and not rank.steps["micro_batches"].any()
    return answers_calls or _only_updates(newest)


def _only_updates(newest: Records) -> bool:
    return bool(len(newest) and np.median(newest["flags"] & NO_OPTIMIZER) == 0)
