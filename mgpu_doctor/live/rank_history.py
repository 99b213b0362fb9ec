"""The time series of ranks, read from black boxes when a graph shows them. Pure.

Rank steps are not collected: a box already holds the newest steps one by one and older ones as
windows over the whole run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mgpu_probes.inprocess import layout

from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank, Records
from mgpu_doctor.live import history_measures
from mgpu_doctor.live.history_measures import Measure
from mgpu_doctor.live.history_spans import NONE, Floats, Spans, values

Reading = Callable[[Records, Floats], Floats]
"""Records and their numbers of steps -> one value per record; NaN: unknown."""


def rank_spans(ranks: Sequence[Rank], measure: Measure) -> Spans:
    """Returns the spans of a rank from its processes, one after another."""
    needs_phases = measure in (history_measures.OWN, history_measures.WAIT, history_measures.INPUT)
    ordered = sorted(ranks, key=lambda rank: rank.started or 0.0)
    timed = [on_one_clock(rank) for rank in ordered] if needs_phases else ordered
    of_processes = [_of_process(rank, READINGS[measure]) for rank in timed]
    if not of_processes:
        return NONE
    start, end, mean = (np.concatenate(parts) for parts in zip(*of_processes, strict=True))
    forward = end > np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1]))
    return values(start[forward], end[forward], mean[forward])


def _of_process(rank: Rank, read: Reading) -> tuple[Floats, Floats, Floats]:
    steps, windows = rank.steps, rank.history
    if len(steps):
        # Where a window overlaps single steps, the steps are used.
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
    """Returns seconds in collectives: waiting, plus transfer where it is measured separately."""
    moving = np.nan_to_num(_phase(records, layout.COMMUNICATION))
    standing: Floats = _phase(records, layout.WAIT) + moving
    return standing


def _rate(field: str) -> Reading:
    def read(records: Records, _many: Floats) -> Floats:
        counted = records[field].astype(np.float64)
        known = (counted > 0) & (records["wall_ns"] > 0)
        known &= records["flags"] & layout.UNTIMED == 0
        return np.where(known, counted / _wall(records), np.nan)

    return read


READINGS: Mapping[Measure, Reading] = {
    history_measures.STEP: lambda records, many: _wall(records) / many,
    history_measures.OWN: lambda records, many: (_wall(records) - _standing(records)) / many,
    history_measures.WAIT: lambda records, many: _standing(records) / many,
    history_measures.INPUT: lambda records, many: _phase(records, layout.INPUT) / many,
    history_measures.LOSS: lambda records, _many: records["loss"].astype(np.float64),
    history_measures.STEP_RATE: lambda records, many: many / _wall(records),
    history_measures.SAMPLE_RATE: _rate("samples"),
    history_measures.TOKEN_RATE: _rate("tokens"),
}
