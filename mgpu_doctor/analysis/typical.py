"""What a usual step of each rank spends in each phase."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.shares import after_warm_up


def phase_medians(measures: Measures) -> list[dict[str, float | None]]:
    """Of each rank of the case, phase -> median seconds a step; None: not known. Time in
    collectives is divided into wait and communication if the ranks could be compared, else all of
    it is `wait` and `communication` unknown."""
    found = [
        dict(zip(PHASES, _medians(after_warm_up(rank.steps)["phases"]), strict=True))
        for rank in measures.case.ranks
    ]
    joined, attribution = measures.joined, measures.attribution
    if joined is None or attribution is None or len(attribution.judged) == 1:
        return found
    if not measures.structure.alike:
        return found  # what even the busiest stage stands is a pipeline's bubble, too
    moving = _median(attribution.communication)
    columns = {number: column for column, number in enumerate(joined.ranks)}
    for rank, medians in zip(measures.case.ranks, found, strict=True):
        column = columns.get(rank.rank) if rank.rank is not None else None
        if column is not None:
            medians[PHASES[WAIT]] = _median(attribution.wait[:, column])
            medians[PHASES[COMMUNICATION]] = moving
    return found


def _medians(seconds: npt.NDArray[np.floating[Any]]) -> list[float | None]:
    """Of each column of (T, 10) what is known of it: all at once where that is everything."""
    count = len(seconds)
    if not count:
        return [None] * seconds.shape[1]
    places = [(count - 1) // 2, count // 2]
    ranked = np.partition(np.array(seconds.T, order="C"), [*places, count - 1], axis=1)
    medians = ranked[:, places].mean(axis=1, dtype=np.float64).tolist()
    partly = np.isnan(ranked[:, -1]).tolist()  # what is not a number comes last
    return [
        _median(seconds[:, place].astype(float)) if lacking else median
        for place, (lacking, median) in enumerate(zip(partly, medians, strict=True))
    ]


def _median(values: npt.NDArray[np.floating[Any]]) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None
