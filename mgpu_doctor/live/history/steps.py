"""A rank's steps over time, straight from its black box: the newest one by one, those before as
windows of the whole run's history. Nothing is collected: the box holds it already. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mgpu_probes.inprocess import layout

from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.case.phase_clock import is_host_stamped
from mgpu_doctor.live.history import measures
from mgpu_doctor.live.history.measures import Measure
from mgpu_doctor.live.history.spans import NONE, Floats, Spans, values

Reading = Callable[[Records, Floats], Floats]
"""Records and the number of steps in each -> a value each; NaN: unknown."""


def spans(ranks: Sequence[Rank], measure: Measure) -> Spans:
    """Of the processes that were one rank, one after the other."""
    needs_phases = measure in (measures.OWN, measures.WAIT, measures.INPUT)
    found = [
        _of_process(rank, READINGS[measure])
        for rank in sorted(ranks, key=lambda rank: rank.started or 0.0)
        if not (needs_phases and is_host_stamped(rank))
    ]
    if not found:
        return NONE
    start, end, mean = (np.concatenate(parts) for parts in zip(*found, strict=True))
    forward = end > np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
    return values(start[forward], end[forward], mean[forward])


def _of_process(rank: Rank, read: Reading) -> tuple[Floats, Floats, Floats]:
    steps, windows = rank.steps, rank.history
    if len(steps):
        # A window that reaches into the single steps is told by them.
        windows = windows[windows["end_ns"] <= steps["end_ns"][0] - steps["wall_ns"][0]]
    parts = [(windows, windows["micro_batches"].astype(np.float64)), (steps, np.ones(len(steps)))]
    end = np.concatenate([part["end_ns"] * 1e-9 for part, _ in parts]) + rank.clock_offset
    wall = np.concatenate([part["wall_ns"] * 1e-9 for part, _ in parts])
    with np.errstate(all="ignore"):
        value = np.concatenate([read(part, many) for part, many in parts])
    return end - wall, end, value


def _wall(records: Records) -> Floats:
    seconds: Floats = records["wall_ns"] * 1e-9
    return seconds


def _phase(records: Records, number: int) -> Floats:
    seconds: Floats = records["phases"][:, number].astype(np.float64)
    return seconds


def _standing(records: Records) -> Floats:
    """Seconds in collectives: waiting, and data that moved where that was told apart."""
    moving = np.nan_to_num(_phase(records, layout.COMMUNICATION))
    standing: Floats = _phase(records, layout.WAIT) + moving
    return standing


def _rate(field: str) -> Reading:
    def read(records: Records, _many: Floats) -> Floats:
        counted = records[field].astype(np.float64)
        known = (counted > 0) & (records["wall_ns"] > 0)
        return np.where(known, counted / _wall(records), np.nan)

    return read


READINGS: Mapping[Measure, Reading] = {
    measures.STEP: lambda records, many: _wall(records) / many,
    measures.OWN: lambda records, many: (_wall(records) - _standing(records)) / many,
    measures.WAIT: lambda records, many: _standing(records) / many,
    measures.INPUT: lambda records, many: _phase(records, layout.INPUT) / many,
    measures.LOSS: lambda records, _many: records["loss"].astype(np.float64),
    measures.STEP_RATE: lambda records, many: many / _wall(records),
    measures.SAMPLE_RATE: _rate("samples"),
    measures.TOKEN_RATE: _rate("tokens"),
}
