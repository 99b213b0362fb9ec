"""Synthetic jobs with known truth: ranks in lockstep, with noise, faults and exact phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.case.model import Case, Job, Outcome, Rank, State, Subject
from mgpu_doctor.case.process_metadata import process_metadata
from mgpu_doctor.recording.box import STEP_DTYPE

BASE = {
    "input": 0.0005,
    "transfer": 0.0002,
    "forward": 0.008,
    "backward": 0.014,
    "optimizer": 0.003,
    "other": 0.001,
}


@dataclass(frozen=True)
class Fault:
    """`milliseconds` more, and `factor` times as long, of a phase on a rank, on steps in
    range(start, stop, every)."""

    rank: int
    phase: str
    milliseconds: float = 0.0
    factor: float = 1.0
    start: int = 0
    stop: int = 10**9
    every: int = 1


@dataclass(frozen=True)
class Synthetic:
    ranks: int = 4
    steps: int = 120
    seed: int = 0
    noise: float = 0.03
    """Coefficient of variation of every phase of every rank and step."""
    shared_noise: float = 0.0
    """The same for whole steps, common to all ranks."""
    spikes: float = 0.01
    """Share of (step, rank) in which a phase takes up to half as long again."""
    asymmetry: float = 0.003
    """Constant relative differences between ranks."""
    communication: float = 0.002
    longer: float = 1.0
    """Factor by which the second half of the steps communicates longer."""
    meets: int = 1
    """Steps between two collectives."""
    base: Mapping[str, float] = field(default_factory=lambda: dict(BASE))
    faults: Sequence[Fault] = ()
    birth: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"


def oversubscribed(**changes: Any) -> Synthetic:
    """Four ranks on two cores: noisy steps that all ranks share, uneven ranks."""
    return Synthetic(**{"noise": 0.25, "shared_noise": 0.15, "asymmetry": 0.01, **changes})


def own_work(job: Synthetic) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Phase -> (steps, ranks) seconds of own work."""
    random = np.random.default_rng(job.seed)
    shape = (job.steps, job.ranks)
    common = _lognormal(random, job.shared_noise, (job.steps, 1))
    uneven = 1 + job.asymmetry * random.standard_normal(job.ranks)
    phases = {}
    for phase, seconds in job.base.items():
        values = seconds * common * uneven * _lognormal(random, job.noise, shape)
        spike = random.random(shape) < job.spikes
        phases[phase] = np.where(spike, values * (1 + 0.5 * random.random(shape)), values)
    for fault in job.faults:
        rows = slice(fault.start, min(fault.stop, job.steps), fault.every)
        values = phases.setdefault(fault.phase, np.zeros(shape))[rows, fault.rank]
        values *= fault.factor
        values += fault.milliseconds * 1e-3
    return phases


def _lognormal(random: np.random.Generator, variation: float, shape: tuple[int, ...]) -> Any:
    sigma = np.sqrt(np.log1p(variation**2))
    return np.exp(sigma * random.standard_normal(shape) - sigma**2 / 2)


def records(job: Synthetic) -> list[Any]:
    """The step records of every rank; all ranks leave a step's collective together."""
    random = np.random.default_rng(job.seed + 1)
    phases = own_work(job)
    own = np.sum(list(phases.values()), axis=0)
    moving = job.communication * _lognormal(random, job.noise, (job.steps, 1))
    moving[job.steps // 2 :] *= job.longer
    standing = np.zeros_like(own)
    for end in range(job.meets, job.steps + 1, job.meets):
        since = own[end - job.meets : end].sum(axis=0)
        standing[end - 1] = since.max() - since + moving[end - 1]
    all_records = []
    for rank in range(job.ranks):
        rank_records = np.zeros(job.steps, dtype=STEP_DTYPE)
        rank_records["seq"] = np.arange(1, job.steps + 1)
        rank_records["step"] = np.arange(job.steps)
        rank_records["phases"] = 0.0
        for phase, values in phases.items():
            rank_records["phases"][:, PHASES.index(phase)] = values[:, rank]
        rank_records["phases"][:, PHASES.index("wait")] = standing[:, rank]
        rank_records["phases"][:, PHASES.index("communication")] = np.nan
        wall = own[:, rank] + standing[:, rank]
        rank_records["wall_ns"] = (wall * 1e9).astype(np.int64)
        rank_records["end_ns"] = 10**12 + np.cumsum(rank_records["wall_ns"])
        rank_records["flags"][:1] = WARM_UP
        rank_records["loss"] = np.nan
        rank_records["cpu_s"] = np.nan
        rank_records["group_seq"] = 10 + 3 * np.arange(job.steps)
        rank_records["collectives"] = 3
        rank_records["micro_batches"] = 1
        rank_records["stage"] = -1
        all_records.append(rank_records)
    return all_records


def make_rank(
    number: int, steps: Any, *, birth: Mapping[str, Any] | None = None, **changes: Any
) -> Rank:
    """A running rank with these step records. `birth`: its metadata, as in a box."""
    facts: dict[str, Any] = {
        "rank": number,
        "local_rank": number,
        "world_size": None,
        "host": "node",
        "pid": 1000 + number,
        "attempt": 0,
        "stage": None,
        "device": "cpu",
        "state": State.RUNNING,
        "exit_code": None,
        "signal": None,
        "ended": None,
        "started": 1000.0,
        "metadata": process_metadata(birth or {}),
        "steps": steps,
        "history": np.zeros(0, dtype=STEP_DTYPE),
        "events": (),
        "now": None,
        "error": None,
        "probe_cost": None,
        "lost_records": 0,
        "clock_offset": 0.0,
    }
    return Rank(**{**facts, **changes})


def make_case(ranks: Sequence[Rank], **changes: Any) -> Case:
    """A running job of these ranks; `changes` are fields of the job."""
    facts: dict[str, Any] = {
        "id": "synthetic",
        "command": ("torchrun", "train.py"),
        "cwd": None,
        "framework": "torch",
        "strategy": "ddp",
        "launcher": "torchrun",
        "world_size": len(ranks),
        "hosts": ("node",),
        "started": 1000.0,
        "ended": None,
        "outcome": Outcome.RUNNING,
        "exit_code": None,
        "signal": None,
        "asked": None,
    }
    return Case(
        subject=Subject("recording", "synthetic"),
        job=Job(**{**facts, **changes}),
        observed=2000.0,
        ranks=tuple(ranks),
    )


def synthetic_case(job: Synthetic) -> Case:
    """The job as a case."""
    return make_case(
        [
            make_rank(number, steps, birth=job.birth, device=job.device)
            for number, steps in enumerate(records(job))
        ]
    )
