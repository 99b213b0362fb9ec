"""What a typical step of each rank spends in each phase. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.statistics.medians import column_medians, known_medians
from mgpu_doctor.analysis.steps.warm_up import after_warm_up, each_after_warm_up
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.recording.record_chunks import chunks


def phase_medians(measures: Measures) -> list[dict[str, float | None]]:
    """For each rank of the case: phase -> median seconds per step; None: unknown, as on ranks whose
    devices were timed by the host's clock only. Time in collectives is split into wait and
    communication if the ranks can be compared; otherwise all of it is `wait`."""
    ranks = [on_one_clock(rank) for rank in measures.case.ranks]
    typical = _medians_by_phase([after_warm_up(rank.steps) for rank in ranks])
    joined, attribution = measures.joined, measures.attribution
    if joined is None or attribution is None:
        return typical
    if not measures.structure.alike:
        return typical  # in a pipeline, even the busiest stage waits during the bubble
    moving = _median(attribution.communication)
    waiting = attribution.by_column(lambda columns: column_medians(attribution.wait_of(columns)))
    waits = dict(zip(joined.ranks, waiting.tolist(), strict=True))
    for rank, medians in zip(measures.case.ranks, typical, strict=True):
        wait = waits.get(rank.rank) if rank.rank is not None else None
        if wait is not None:
            medians[PHASES[WAIT]] = None if isnan(wait) else wait
            medians[PHASES[COMMUNICATION]] = moving
    return typical


def step_medians(ranks: Sequence[Rank]) -> list[float | None]:
    """For each rank: median seconds per step after its warm-up, or of all its steps if there are no
    others; None: no step is recorded."""
    steps = [rank.steps for rank in ranks]
    kept = each_after_warm_up(steps)
    records = [late if len(late) else every for late, every in zip(kept, steps, strict=True)]
    medians: list[float | None] = [None] * len(ranks)
    for chunk in chunks(records):
        wall = chunk["wall_ns"].copy()
        if wall.size:
            seconds = known_medians(wall) * 1e-9
            for place, median in zip(chunk.places.tolist(), seconds.tolist(), strict=True):
                medians[place] = median
    return medians


def _medians_by_phase(records: Sequence[Records]) -> list[dict[str, float | None]]:
    """For each rank: phase -> median; phases that are equal in all records are not searched."""
    medians: list[dict[str, float | None]] = [dict.fromkeys(PHASES) for _ in records]
    for chunk in chunks(records):
        for number, phase in enumerate(PHASES):
            seconds = chunk[number]
            if not chunk.differs(number):
                seconds = seconds[:, :1]
            for place, median in zip(chunk.places.tolist(), _medians(seconds.T), strict=True):
                medians[place][phase] = median
    return medians


def _medians(seconds: npt.NDArray[np.floating[Any]]) -> list[float | None]:
    """Median of the known values of each column."""
    count = len(seconds)
    if not count:
        return [None] * seconds.shape[1]
    ranked = np.array(seconds.T, order="C")
    partly = np.isnan(ranked).any(axis=1).tolist()
    ranked.partition(count // 2, axis=1)
    upper = ranked[:, count // 2].astype(np.float64)
    lower = upper if count % 2 else ranked[:, : count // 2].max(axis=1)
    medians = ((lower + upper) / 2).tolist()
    return [
        _median(seconds[:, place].astype(float)) if lacking else median
        for place, (lacking, median) in enumerate(zip(partly, medians, strict=True))
    ]


def _median(values: npt.NDArray[np.floating[Any]]) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
