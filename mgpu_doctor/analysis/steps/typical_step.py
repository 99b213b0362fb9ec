"""What a typical step of each rank spends in each phase. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import isnan
from typing import NamedTuple

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.statistics.medians import column_medians, known_medians
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.warm_up import each_after_warm_up
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.case.device_times import timed
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.record_chunks import Chunk, chunks
from mgpu_doctor.recording.second_process import Divided


class TypicalStep(NamedTuple):
    """Medians of a rank's steps. None: unknown."""

    phases: dict[str, float | None]
    """Seconds per step in each phase, after warm-up; unknown on ranks whose devices were timed by
    the host's clock only. All time in collectives is `wait`."""
    seconds: float | None
    """Seconds per step after warm-up, or of all steps if there are no others; None: no step is
    recorded."""


UNKNOWN = TypicalStep(dict.fromkeys(PHASES), None)


def typical_steps(recorded: Sequence[Rank], ranks: Sequence[Rank]) -> Divided[list[TypicalStep]]:
    """The typical step of each rank. `recorded`, `ranks`: the same, as recorded and on one
    clock."""
    steps = [rank.steps for rank in recorded]
    late = each_after_warm_up(steps)
    phased = each_after_warm_up([rank.steps for rank in ranks])
    of_phases = list(chunks([timed(records) for records in phased]))
    of_steps = list(
        chunks([own if len(own) else every for own, every in zip(late, steps, strict=True)])
    )
    calls = [
        *(partial(_phase_medians, chunk) for chunk in of_phases),
        *(partial(_step_medians, chunk) for chunk in of_steps),
    ]
    return Divided(calls, partial(_by_rank, len(ranks), of_phases, of_steps))


def _by_rank(
    ranks: int, of_phases: list[Chunk], of_steps: list[Chunk], medians: Sequence[Floats]
) -> list[TypicalStep]:
    phases, seconds = np.full((ranks, len(PHASES)), np.nan), np.full(ranks, np.nan)
    for chunk, result in zip(of_phases, medians[: len(of_phases)], strict=True):
        phases[chunk.places] = result
    for chunk, result in zip(of_steps, medians[len(of_phases) :], strict=True):
        seconds[chunk.places] = result
    return [
        TypicalStep(dict(zip(PHASES, map(_known, of_rank), strict=True)), _known(of_step))
        for of_rank, of_step in zip(phases.tolist(), seconds.tolist(), strict=True)
    ]


def divide_collectives(
    typical: Iterable[TypicalStep],
    ranks: Sequence[Rank],
    joined: Joined,
    attribution: Attribution,
) -> list[TypicalStep]:
    """The typical steps of these ranks, with time in collectives divided into wait and
    communication. Not for a pipeline, in which even the busiest stage waits during the bubble."""
    known = attribution.communication[~np.isnan(attribution.communication)]
    moving = float(np.median(known.astype(float))) if len(known) else None
    waiting = attribution.by_column(lambda columns: column_medians(attribution.wait_of(columns)))
    waits = dict(zip(joined.ranks, waiting.tolist(), strict=True))
    divided = []
    for rank, step in zip(ranks, typical, strict=True):
        wait = waits.get(rank.rank) if rank.rank is not None else None
        if wait is not None:
            both = {PHASES[WAIT]: _known(wait), PHASES[COMMUNICATION]: moving}
            divided.append(step._replace(phases={**step.phases, **both}))
        else:
            divided.append(step)
    return divided


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _step_medians(chunk: Chunk) -> Floats:
    """(k) median seconds of a step, NaN: there is none."""
    wall = chunk["wall_ns"].copy()
    return known_medians(wall) * 1e-9 if wall.size else np.full(len(wall), np.nan)


def _phase_medians(chunk: Chunk) -> Floats:
    """(k, 10) median seconds of each phase, NaN: unknown."""
    ranks = len(chunk.places)
    medians = np.empty((ranks, len(PHASES)))
    for numbers, seconds in chunk.phases():
        rows = seconds.reshape(len(numbers) * ranks, seconds.shape[-1])
        differs = any(map(chunk.differs, numbers)) or not rows.shape[1]
        own = _medians(rows) if differs else rows[:, 0]
        medians[:, numbers] = own.reshape(len(numbers), ranks).T
    return medians


def _medians(seconds: Floats) -> Floats:
    """(k) median of the known values of each row of (k, n); NaN for rows without one."""
    count = seconds.shape[1]
    if not count:
        return np.full(len(seconds), np.nan)
    ranked = np.array(seconds, order="C")
    partly = np.flatnonzero(np.isnan(ranked).any(axis=1))
    ranked.partition(count // 2, axis=1)
    upper = ranked[:, count // 2].astype(np.float64)
    lower = upper if count % 2 else ranked[:, : count // 2].max(axis=1)
    medians = np.asarray((lower + upper) / 2)
    for row in partly.tolist():
        known = seconds[row][~np.isnan(seconds[row])].astype(float)
        medians[row] = np.median(known) if len(known) else np.nan
    return medians
