"""Joins the step records of ranks: finds the records of all ranks that are the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import (
    CHECKPOINT,
    COMMUNICATION,
    EVALUATION,
    OTHER,
    WAIT,
    WARM_UP,
)

from mgpu_doctor.analysis.statistics.medians import median_of_others
from mgpu_doctor.analysis.steps.step_cells import (
    Cells,
    Floats,
    Ints,
    Phases,
    Rows,
    each_once,
    is_constant,
)
from mgpu_doctor.analysis.steps.warm_up import LEADING, LEADING_FACTOR, warming_up
from mgpu_doctor.case.device_times import AFTER_UNTIMED, DEVICE_TIMED
from mgpu_doctor.case.model import Gap, Rank, Records

__all__ = ["Floats", "Ints", "Joined", "UnjoinableError", "join"]

EXPLAINED = 0.8
"""A long step is no warm-up if checkpoints, evaluation or what only one rank does outside the other
phases take this share of it; nor is the next one, if the wait for that takes as much. A choice."""
MATCHED = 0.5
"""Share of the shortest rank's steps that every rank must have for a valid join."""
IN_STEP = 0.8
"""Share of joined steps in which the step counters of all ranks must advance equally."""
SAMPLED = 1.5
"""Mean distance of compared steps from which most neighbours are missing."""
CELLS = 10_000_000
"""Maximum of compared (step, rank) cells, 40 MB per measure: 1,000 steps of 10,000 ranks, or all
steps in the black boxes of 1,000 ranks. In larger jobs, the newest steps are compared."""


class UnjoinableError(ValueError):
    """The ranks' steps cannot be compared; the message says why. `gap`: whether more steps may
    change that."""

    def __init__(self, message: str, gap: Gap = Gap.RANK_COMPARISON) -> None:
        super().__init__(message)
        self.gap = gap


@dataclass(frozen=True, eq=False)
class Joined:
    """The same steps of several ranks, side by side. Seconds; T steps × R ranks.

    Properties are read from the records on first use.
    """

    ranks: tuple[int, ...]
    steps: Ints
    """(T) step numbers as counted by the first rank."""
    wall: Floats
    """(T, R)"""
    phases: Phases
    """(T, R, 10), NaN: not measured; reads what is indexed: `phases[:, :, INPUT]`"""
    joined_by: str
    """"collective sequence" or "step number"."""
    left_out: tuple[int, ...]
    """Ranks with too few records to compare."""
    counted_from: int
    """First step number that is still on record."""
    cells: Cells
    offsets: tuple[float, ...]
    """(R) seconds from each rank's monotonic clock to the epoch."""

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step, over steps and ranks."""
        return float(np.mean(self.wall, dtype=np.float64))

    def between(self, start: int, stop: int) -> Joined:
        """The steps from index `start` up to `stop`; `counted_from` stays."""
        cells = self.cells.between(start, stop)
        steps, wall = self.steps[start:stop], self.wall[start:stop]
        return replace(self, steps=steps, wall=wall, phases=Phases(cells), cells=cells)

    @cached_property
    def is_sampled(self) -> bool:
        """Whether steps are missing between the compared ones, so that single slow steps and
        periods cannot be judged."""
        apart = int(self.steps[-1]) - int(self.steps[0])
        return apart >= SAMPLED * max(1, len(self.steps) - 1)

    @cached_property
    def is_device_timed(self) -> bool:
        """Whether devices timed the phases, while their hosts ran ahead."""
        columns = range(len(self.ranks))
        return any((self.cells.column("flags", column) & DEVICE_TIMED).any() for column in columns)

    @cached_property
    def end(self) -> Floats:
        """(T, R) seconds since the epoch, by each host's own clock"""
        return np.asarray(self.cells.field("end_ns", np.float64) * 1e-9 + self.offsets)

    @cached_property
    def samples(self) -> Floats:
        """(T, R) samples fetched, NaN: unknown"""
        return _unknown_where_zero(self.cells.field("samples"))

    @cached_property
    def tokens(self) -> Floats:
        """(T, R) the same in tokens"""
        return _unknown_where_zero(self.cells.field("tokens"))

    @cached_property
    def collecting(self) -> Floats:
        """(T, R) seconds in Python's garbage collector, NaN: not measured"""
        return self.cells.field("gc_s")

    @cached_property
    def running(self) -> Floats:
        """(T, R) CPU seconds of the main thread, NaN: not measured"""
        return self.cells.field("cpu_s")


def _unknown_where_zero(values: Floats) -> Floats:
    some = values[:1, :1] if is_constant(values) else values
    known = np.where(some > 0, some, np.float32(np.nan))
    return np.broadcast_to(known, values.shape)


def join(ranks: Sequence[Rank], *, least: int = 1, fewest: int = 2, newest: int = 0) -> Joined:
    """Joins the records of `ranks` that hold at least `least` steps after warm-up, and are at least
    `fewest` ranks. `newest`: only so many records of each; 0: all.

    Uses the default group's collective sequence number, which is equal on all ranks at the end of
    the same step of a data-parallel job. If it is unknown or does not match (point-to-point
    pipelines count differently), uses the step number, if the ranks' counters agree. Raises
    `UnjoinableError`.
    """
    named = {rank.rank: rank for rank in ranks if rank.rank is not None}
    enough = {number: rank for number, rank in named.items() if len(rank.steps) >= least}
    if len(enough) < fewest:
        raise UnjoinableError(
            f"{len(enough)} of {len(ranks)} ranks recorded at least {least} steps; {fewest} are "
            "needed",
            Gap.FEW_STEPS,
        )
    left_out = tuple(sorted(set(named) - set(enough)))
    records = [enough[number].steps[-newest:] for number in sorted(enough)]
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
    """For each rank, the indices of the steps that every rank has, and how they were matched."""
    for field, keys_of, joined_by in (
        ("group_seq", _sequence_keys, "collective sequence"),
        ("step", _step_keys, "step number"),
    ):
        numbers = _shared([record[field] for record in records])
        rows = _rows_of_common(each_once(numbers, keys_of))
        if rows is not None and _in_step(records, rows):
            return rows, joined_by
    if max(int(record["step"][0]) for record in records) > min(
        int(record["step"][-1]) for record in records
    ):
        raise UnjoinableError(
            f"the newest {max(map(len, records)):,} steps of the ranks have none in common"
        )
    raise UnjoinableError("neither collective sequence numbers nor step counts of the ranks agree")


def _step_keys(steps: Ints) -> Ints:
    return steps


def _sequence_keys(sequence: Ints) -> Ints:
    """Collective sequence number and, if several steps share one, their order."""
    if not len(sequence) or np.mean(sequence > 0) < MATCHED:
        return np.empty(0, dtype=np.int64)
    fresh = np.concatenate(([True], sequence[1:] != sequence[:-1]))
    starts = np.flatnonzero(fresh)
    occurrence = np.arange(len(sequence)) - np.repeat(starts, np.diff([*starts, len(sequence)]))
    keys = sequence * (1 << 20) + np.minimum(occurrence, (1 << 20) - 1)
    return np.where(sequence > 0, keys, -np.arange(1, len(keys) + 1))


def _shared(arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> list[Ints]:
    """The arrays as int64, equal ones as one object: many ranks of a large job are equal."""
    known: dict[bytes, Ints] = {}

    def shared(array: npt.NDArray[np.integer[Any]]) -> Ints:
        whole = array.astype(np.int64)
        return known.setdefault(whole.tobytes(), whole)

    return each_once(arrays, shared)


def _rows_of_common(keys: Sequence[Ints]) -> list[Ints] | None:
    shortest = min(len(key) for key in keys)
    if shortest == 0:
        return None
    distinct = {id(key): key for key in keys}
    first = {key: np.unique(values, return_index=True) for key, values in distinct.items()}
    common = reduce(
        lambda a, b: np.intersect1d(a, b, assume_unique=True),
        (unique for unique, _ in first.values()),
    )
    common = common[common >= 0]
    if not len(common):
        return None
    # Devices may time one step in one or in eight: their tables reach back differently far.
    within = (
        int(((values >= common[0]) & (values <= common[-1])).sum()) for values, _ in first.values()
    )
    if len(common) < MATCHED * min(shortest, *within):
        return None
    rows = {key: index[np.searchsorted(unique, common)] for key, (unique, index) in first.items()}
    return [rows[id(key)] for key in keys]


def _in_step(records: Sequence[Records], rows: Sequence[Ints]) -> bool:
    """Whether the ranks' own counters advance alike over the joined steps."""
    if len(rows[0]) < 2:
        return True
    numbers = [record["step"] for record in records]
    by_both = {
        (id(number), id(row)): number[row].astype(np.int64)
        for number, row in zip(numbers, rows, strict=True)
    }
    counted = _shared(list(by_both.values()))
    first, *others = {id(values): np.diff(values) for values in counted}.values()
    alike = np.ones(len(first), dtype=bool)
    for advances in others:
        alike &= advances == first
    return bool(np.mean(alike) >= IN_STEP)


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
    rows = each_once(rows, lambda row: row[-newest:])
    steps = records[0]["step"][rows[0]].astype(np.int64)
    longest = np.zeros(len(steps))
    flags = np.zeros(len(steps), dtype=np.int64)
    common = np.full(len(steps), AFTER_UNTIMED, dtype=np.int64)
    for chunk in Cells(records, each_once(rows, _as_slice), len(steps)).chunks:
        np.maximum(longest, chunk["wall_ns"].max(axis=0), out=longest)
        flags |= np.bitwise_or.reduce(chunk["flags"], axis=0)
        common &= np.bitwise_and.reduce(chunk["flags"], axis=0)
    longest *= 1e-9
    cut = warming_up(steps, longest, flags)
    cut[_explained(records, rows, longest, flags)] = False
    cut |= flags & AFTER_UNTIMED != common  # the hooks cost more on some ranks than on others
    kept = np.flatnonzero(~cut)
    if not len(kept):
        raise UnjoinableError(
            "every step that the ranks have in common belongs to the warm-up, or its hooks had "
            "rested on some ranks only",
            Gap.FEW_STEPS,
        )
    cells = Cells(records, each_once(rows, lambda row: _as_slice(row[kept])), len(kept))
    return Joined(
        ranks=tuple(numbers),
        steps=steps[kept],
        wall=cells.seconds("wall_ns"),
        phases=Phases(cells),
        joined_by=joined_by,
        left_out=left_out,
        counted_from=int(steps[0]),
        cells=cells,
        offsets=tuple(offsets),
    )


def _explained(
    records: Sequence[Records], rows: Sequence[Ints], longest: Floats, flags: Ints
) -> Ints:
    """Indices of long steps near the start that are no warm-up: on some rank, most of the time is a
    checkpoint, an evaluation, or work in `other` that the other ranks do not do; or it is the wait
    for that in the next step. Steps that the probes flag as warm-up are not among them."""
    is_long = longest[:LEADING] > LEADING_FACTOR * np.median(longest)
    chosen = np.flatnonzero(is_long & (flags[:LEADING] & WARM_UP == 0))
    if not len(chosen):
        return chosen
    phases = np.stack(
        [record[row[chosen]]["phases"] for record, row in zip(records, rows, strict=True)], axis=1
    )
    other = phases[:, :, OTHER]
    alone = np.nan_to_num(np.maximum(other - median_of_others(other), 0))
    known = np.nan_to_num(phases[:, :, [CHECKPOINT, EVALUATION]]).sum(axis=2) + alone
    waits = np.nan_to_num(phases[:, :, [WAIT, COMMUNICATION]]).sum(axis=2).max(axis=1)
    least = EXPLAINED * longest[chosen]
    explained = known.max(axis=1) >= least
    follows = np.isin(chosen - 1, chosen[explained])
    return np.asarray(chosen[explained | (follows & (waits >= least))])


def _as_slice(row: Ints) -> Rows:
    contiguous = row[-1] - row[0] == len(row) - 1 and bool(np.all(np.diff(row) == 1))
    return slice(int(row[0]), int(row[-1]) + 1) if contiguous else row
