"""Joins the step records of ranks: which records of different ranks are the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.case.model import Rank, Records

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FIRST_STEPS = 5
"""The first steps of a run fill caches and compile; they are never compared."""
LEADING = 20
LEADING_FACTOR = 5.0
"""Among the first 20 steps, one longer than 5 times the median is still warming up."""
MATCHED = 0.5
"""Share of the shortest rank's steps that must be found in every rank for a join to stand."""
IN_STEP = 0.8
"""Share of joined steps over which all ranks' own counters must have advanced alike."""
CELLS = 2_000_000
"""Most (step, rank) cells kept: 80 MB of phases. Of longer runs the newest steps are compared."""


class UnjoinableError(ValueError):
    """The ranks' steps cannot be compared; the message says why."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The same steps of several ranks, side by side. Seconds; T steps × R ranks."""

    ranks: tuple[int, ...]
    steps: Ints
    """(T) step numbers as the first of the ranks counted them."""
    wall: Floats
    """(T, R)"""
    phases: Floats
    """(T, R, 10), NaN: not measured"""
    end: Floats
    """(T, R) seconds since the epoch, by each host's own clock"""
    flags: Ints
    """(T, R)"""
    joined_by: str
    """"collective sequence" or "step number"."""
    left_out: tuple[int, ...]
    """Ranks with too few records to be compared."""
    counted_from: int
    """First step number that the records still hold."""

    @property
    def step_seconds(self) -> float:
        """Mean seconds a step, over steps and ranks."""
        return float(np.mean(self.wall))


def join(ranks: Sequence[Rank], *, least: int = 1) -> Joined:
    """Joins the records of `ranks` that hold at least `least` steps after warm-up.

    By the default group's collective sequence number, which is equal in all ranks at the end of
    the same step of a data-parallel job. Where it is unknown or does not match (point-to-point
    pipelines count differently), by step number, if the ranks' counters agree. Raises
    `UnjoinableError`.
    """
    named = {rank.rank: rank for rank in ranks if rank.rank is not None}
    enough = {number: rank for number, rank in named.items() if len(rank.steps) >= least}
    if len(enough) < 2:
        raise UnjoinableError(
            f"{len(enough)} of {len(ranks)} ranks recorded at least {least} steps; two are needed"
        )
    left_out = tuple(sorted(set(named) - set(enough)))
    records = [enough[number].steps for number in sorted(enough)]
    rows, joined_by = _matching_rows(records)
    offsets = [enough[number].clock_offset for number in sorted(enough)]
    return _assemble(
        records,
        rows,
        numbers=sorted(enough),
        offsets=offsets,
        joined_by=joined_by,
        left_out=left_out,
    )


def _matching_rows(records: Sequence[Records]) -> tuple[list[Ints], str]:
    """For each rank, the rows of the steps that every rank has."""
    for keys, joined_by in (
        ([_sequence_keys(one) for one in records], "collective sequence"),
        ([one["step"].astype(np.int64) for one in records], "step number"),
    ):
        rows = _rows_of_common(keys)
        if rows is not None and _in_step(records, rows):
            return rows, joined_by
    raise UnjoinableError("neither collective sequence numbers nor step counts of the ranks agree")


def _sequence_keys(records: Records) -> Ints:
    """Collective sequence and, where several steps share one, the occurrence."""
    sequence = records["group_seq"].astype(np.int64)
    if not len(sequence) or np.mean(sequence > 0) < MATCHED:
        return np.empty(0, dtype=np.int64)
    fresh = np.concatenate(([True], sequence[1:] != sequence[:-1]))
    starts = np.flatnonzero(fresh)
    occurrence = np.arange(len(sequence)) - np.repeat(starts, np.diff([*starts, len(sequence)]))
    keys = sequence * (1 << 20) + np.minimum(occurrence, (1 << 20) - 1)
    return np.where(sequence > 0, keys, -np.arange(1, len(keys) + 1))


def _rows_of_common(keys: Sequence[Ints]) -> list[Ints] | None:
    shortest = min(len(one) for one in keys)
    if shortest == 0:
        return None
    first = [np.unique(one, return_index=True) for one in keys]
    common = reduce(lambda a, b: np.intersect1d(a, b, assume_unique=True), (u for u, _ in first))
    common = common[common >= 0]
    if len(common) < MATCHED * shortest:
        return None
    return [index[np.searchsorted(unique, common)] for unique, index in first]


def _in_step(records: Sequence[Records], rows: Sequence[Ints]) -> bool:
    """Whether the ranks' own counters advance alike over the joined steps."""
    if len(rows[0]) < 2:
        return True
    advances = np.stack(
        [np.diff(one["step"][row].astype(np.int64)) for one, row in zip(records, rows, strict=True)]
    )
    return bool(np.mean(np.all(advances == advances[0], axis=0)) >= IN_STEP)


def _assemble(
    records: Sequence[Records],
    rows: Sequence[Ints],
    *,
    numbers: Sequence[int],
    offsets: Sequence[float],
    joined_by: str,
    left_out: tuple[int, ...],
) -> Joined:
    newest = max(1, CELLS // len(records))
    rows = [row[-newest:] for row in rows]
    wall = np.stack(
        [one["wall_ns"][row] * 1e-9 for one, row in zip(records, rows, strict=True)], axis=1
    )
    flags = np.stack(
        [one["flags"][row].astype(np.int64) for one, row in zip(records, rows, strict=True)], axis=1
    )
    steps = records[0]["step"][rows[0]].astype(np.int64)
    kept = ~warming_up(steps, wall, flags)
    if not kept.any():
        raise UnjoinableError("every step that the ranks have in common belongs to the warm-up")
    count = int(kept.sum())
    phases = np.empty((count, len(records), len(PHASES)))
    end = np.empty((count, len(records)))
    for column, (one, row, offset) in enumerate(zip(records, rows, offsets, strict=True)):
        phases[:, column] = one["phases"][row][kept]
        end[:, column] = one["end_ns"][row][kept] * 1e-9 + offset
    return Joined(
        ranks=tuple(numbers),
        steps=steps[kept],
        wall=wall[kept],
        phases=phases,
        end=end,
        flags=flags[kept],
        joined_by=joined_by,
        left_out=left_out,
        counted_from=int(steps[0]),
    )


def warming_up(steps: Ints, wall: Floats, flags: Ints) -> npt.NDArray[np.bool_]:
    """(T) which steps belong to the warm-up: flagged by any rank, the first steps of the run, or
    far longer than the median near the start of the records."""
    longest = wall.max(axis=1)
    slow_start = longest > LEADING_FACTOR * np.median(longest)
    slow_start[LEADING:] = False
    flagged = np.any(flags & WARM_UP, axis=1)
    return np.asarray(flagged | (steps < FIRST_STEPS) | slow_start)
