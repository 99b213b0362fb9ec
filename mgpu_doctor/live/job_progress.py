"""How fast a job is running, from the newest step records of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import UNTIMED

from mgpu_doctor.analysis.structure.job_structure import without
from mgpu_doctor.case.model import Case, Rank, Records, State
from mgpu_doctor.live.frame import NO_PROGRESS, Progress

NEWEST_STEPS = 20
"""Steps per rank that are used."""
STANDS_SECONDS, STANDS_STEPS = 10.0, 10.0
"""A job makes no progress if no step ended for this many seconds and this many usual steps."""
SHARED = frozenset({"tensor", "context", "expert"})
"""Strategies in which several ranks share one batch; the records do not say which ranks."""

Floats = npt.NDArray[np.floating[Any]]
Places = npt.NDArray[np.intp]
Stages = Sequence[Sequence[int]]


def measure_progress(
    case: Case, stages: Stages = (), servers: frozenset[int] = frozenset()
) -> Progress:
    """Returns the recent progress. `stages`: the ranks of each pipeline stage, if there are
    stages. `servers`: the ranks that only serve."""
    ranks = [rank for rank in without(case.ranks, servers) if len(rank.steps)]
    if not ranks:
        return NO_PROGRESS
    newest = [rank.steps[-NEWEST_STEPS:] for rank in ranks]
    owner = np.repeat(np.arange(len(ranks)), [len(step) for step in newest])
    records = _together(newest)
    last = np.cumsum([len(step) for step in newest]) - 1
    wall = np.bincount(owner, records["wall_ns"]) * 1e-9
    furthest = int(records["step"][last].argmax())
    seconds = float(wall[furthest]) / len(newest[furthest])
    if seconds <= 0:
        return Progress(loss=_loss(records, owner))
    ends = records["end_ns"][last] * 1e-9 + [rank.clock_offset for rank in ranks]
    idle = _idle(ranks, case.observed - float(ends.max()), seconds)
    teams = _teams(case, ranks, stages) if idle is None else []
    epoch, left = _epoch(ranks[furthest], seconds) if idle is None else (None, None)
    return Progress(
        step_seconds=seconds,
        samples=_throughput(records, "samples", owner, teams),
        tokens=_throughput(records, "tokens", owner, teams),
        loss=_loss(records, owner),
        idle=idle,
        probe=_probe(ranks, records["seq"][last], seconds),
        epoch=epoch,
        epoch_left=left,
    )


def _epoch(rank: Rank, step: float) -> tuple[int | None, float | None]:
    """Returns the epoch, from 1, and its remaining seconds; None unless the steps so far lie in the
    current epoch of exactly one data loader. `step`: seconds per step."""
    newest = rank.steps[-1:]
    each = int(newest["micro_batches"][0])
    used = each * (int(newest["step"][0]) + 1)
    fitting = [
        (loader.epochs, loader.epochs * loader.batches - used)
        for loader in rank.metadata.loaders
        if loader.epochs
        and loader.batches
        and (loader.epochs - 1) * loader.batches < used <= loader.epochs * loader.batches
    ]
    if len(fitting) != 1 or not each:
        return None, None
    epoch, batches = fitting[0]
    return epoch, batches / each * step


def _together(parts: Sequence[Records]) -> Records:
    """Returns the records concatenated, as plain bytes, which NumPy copies twenty times as fast as
    fields."""
    kind = parts[0].dtype
    joined: Records = np.concatenate(
        [part.copy().view(f"V{kind.itemsize}") for part in parts]
    ).view(kind)
    return joined


def _idle(ranks: Sequence[Rank], since: float, step: float) -> float | None:
    lives = any(rank.state in (State.RUNNING, State.WAITING) for rank in ranks)
    return since if lives and since > max(STANDS_SECONDS, STANDS_STEPS * step) else None


def _teams(case: Case, ranks: Sequence[Rank], stages: Stages) -> list[Places]:
    """Returns groups of rank positions whose batches add up to the job's input: those of one
    stage."""
    if SHARED & set((case.job.strategy or "").split("+")):
        return []
    places = {rank.rank: at for at, rank in enumerate(ranks)}
    teams = [[places[number] for number in stage if number in places] for stage in stages]
    return [np.array(team, np.intp) for team in teams or [[*range(len(ranks))]]]


def _throughput(
    records: Records, field: str, owner: Places, teams: Sequence[Places]
) -> float | None:
    """Returns the throughput per second in timed steps; 0 in a record means unknown."""
    is_timed = records["flags"] & UNTIMED == 0
    counted = np.where(is_timed, records[field], 0)
    wall = np.bincount(owner, np.where(is_timed, records["wall_ns"], 0)) * 1e-9
    unknown = np.bincount(owner, is_timed & (counted == 0)) > 0
    rates = np.bincount(owner, counted) / np.where((wall > 0) & ~unknown, wall, np.nan)
    sums = [float(rates[team].sum()) for team in teams if len(team)]
    return max((value for value in sums if np.isfinite(value)), default=None)


def _loss(records: Records, owner: Places) -> float | None:
    measured = ~np.isnan(records["loss"])
    if not measured.any():
        return None
    losses = records["loss"][measured].astype(np.float64)
    latest = np.full(int(owner[-1]) + 1, np.nan)
    latest[owner[measured]] = losses
    broken = np.isinf(latest).any()
    return float("inf") if broken else float(losses[np.isfinite(losses)].mean())


def _probe(ranks: Sequence[Rank], steps: npt.NDArray[np.uint64], step: float) -> float | None:
    """Returns the probe's share of step time. `steps`: number per rank. A probe that does not count
    its cost leaves it at 0."""
    costs = [
        rank.probe_cost / int(many)
        for rank, many in zip(ranks, steps, strict=True)
        if rank.probe_cost and many
    ]
    return min(1.0, sum(costs) / len(costs) / step) if costs else None
