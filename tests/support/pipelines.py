"""Synthetic jobs whose ranks depend on each other: pipelines, and tensor parallel pairs. Who works
and who waits follows from when each has what it needs; no formula of the doctor is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.synthetic import Fault, make_case, make_rank

Floats = npt.NDArray[np.float64]
WORK = [PHASES.index("forward"), PHASES.index("backward")]


@dataclass(frozen=True)
class Pipeline:
    """`replicas` pipelines whose equal stages average their gradients at the end of a step."""

    forward: Sequence[float] = (0.004, 0.004, 0.004, 0.004)
    """Seconds of each stage a step; backward takes twice as long."""
    micro_batches: int = 4
    replicas: int = 1
    steps: int = 120
    seed: int = 0
    noise: float = 0.03
    faults: Sequence[Fault] = ()
    sizes: Floats | None = None
    """(T, ranks) factors of both passes: the sizes of the data. The CPU does the work."""
    parameters: Sequence[int] = ()
    birth: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return self.replicas * len(self.forward)

    def stage(self, rank: int) -> int:
        return rank % len(self.forward)


def pipeline_case(job: Pipeline) -> Case:
    """The job as a case, its births telling who sends to whom."""
    return make_case(pipeline_ranks(job), strategy="manual")


def pipeline_ranks(job: Pipeline) -> list[Rank]:
    return [
        make_rank(number, steps, birth={**_birth(job, number), **job.birth})
        for number, steps in enumerate(_records(job))
    ]


def _birth(job: Pipeline, rank: int) -> dict[str, Any]:
    stage, last = job.stage(rank), len(job.forward) - 1
    beside = [rank - 1] * (stage > 0) + [rank + 1] * (stage < last)
    facts: dict[str, Any] = {"sends_to": beside, "receives_from": beside}
    if job.parameters:
        facts["optimizers"] = [{"class": "SGD", "parameters": job.parameters[stage]}]
    return facts


def _records(job: Pipeline) -> list[Any]:
    random = np.random.default_rng(job.seed)
    own = {name: np.zeros((job.steps, job.world)) for name in PHASES}
    for rank in range(job.world):
        seconds = job.forward[job.stage(rank)]
        for name, value in (("forward", seconds), ("backward", 2 * seconds), ("other", 2e-4)):
            own[name][:, rank] = value * (1 + job.noise * random.standard_normal(job.steps))
        own["optimizer"][:, rank] = 3e-4
    for fault in job.faults:
        rows = slice(fault.start, min(fault.stop, job.steps), fault.every)
        own[fault.phase][rows, fault.rank] *= fault.factor
        own[fault.phase][rows, fault.rank] += fault.milliseconds * 1e-3
    if job.sizes is not None:
        own["forward"] *= job.sizes
        own["backward"] *= job.sizes
    ends = np.zeros((job.steps + 1, job.world))
    for step in range(job.steps):
        ends[step + 1] = _one_step(job, ends[step], {k: v[step] for k, v in own.items()})
    wall = np.diff(ends, axis=0)
    own["wait"] = wall - np.sum(list(own.values()), axis=0)
    return [_of_rank(job, rank, own, ends) for rank in range(job.world)]


def _one_step(job: Pipeline, began: Floats, own: Mapping[str, Floats]) -> Floats:
    """When each rank ends the step: all forward passes, then all backward passes (GPipe)."""
    stages, m = len(job.forward), job.micro_batches
    free = began + own["input"]
    for chain in range(job.replicas):
        first = chain * stages
        ready = np.zeros(m)
        for rank in range(first, first + stages):
            for i in range(m):
                free[rank] = max(free[rank], ready[i]) + own["forward"][rank] / m
                ready[i] = free[rank]
        ready[:] = 0
        for rank in reversed(range(first, first + stages)):
            for i in range(m):
                free[rank] = max(free[rank], ready[i]) + own["backward"][rank] / m
                ready[i] = free[rank]
    for stage in range(stages):
        free[stage::stages] = free[stage::stages].max()
    return np.asarray(free + own["optimizer"] + own["other"])


def _of_rank(job: Pipeline, rank: int, own: Mapping[str, Floats], ends: Floats) -> Any:
    rank_records = np.zeros(job.steps, dtype=STEP_DTYPE)
    rank_records["seq"] = np.arange(1, job.steps + 1)
    rank_records["step"] = np.arange(job.steps)
    for phase, name in enumerate(PHASES):
        rank_records["phases"][:, phase] = own[name][:, rank]
    rank_records["phases"][:, PHASES.index("communication")] = np.nan
    rank_records["wall_ns"] = np.diff(ends[:, rank]) * 1e9
    rank_records["end_ns"] = 10**12 + ends[1:, rank] * 1e9
    rank_records["flags"][:1] = WARM_UP
    rank_records["loss"] = np.nan
    rank_records["cpu_s"] = (
        rank_records["phases"][:, WORK].sum(axis=1) if job.sizes is not None else np.nan
    )
    rank_records["collectives"] = 2 * job.micro_batches
    rank_records["micro_batches"] = job.micro_batches
    rank_records["stage"] = -1
    return rank_records


@dataclass(frozen=True)
class Pairs:
    """One step of four ranks: tensor parallel pairs (0, 1) and (2, 3) meet after each layer, then
    data parallel pairs (0, 2) and (1, 3) at the end. Seconds; rows are ranks."""

    own: Floats
    """Own work of the step."""
    arrived: Floats
    """Arrival at the data parallel collective."""
    waited: Floats
    """In all collectives."""


def step_of_pairs(work: Floats) -> Pairs:
    """`work`: (4, layers) seconds that each rank computes before each tensor collective."""
    now = np.zeros(4)
    waited = np.zeros(4)
    for layer in work.T:
        now += layer
        together = np.repeat(now.reshape(2, 2).max(axis=1), 2)
        waited += together - now
        now = together
    together = np.tile(now.reshape(2, 2).max(axis=0), 2)
    return Pairs(work.sum(axis=1), now, waited + together - now)
