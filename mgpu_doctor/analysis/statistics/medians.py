"""Medians over ranks, of values that may be missing, and of each rank's peers in linear time.

NumPy partitions an array around one element ten times as fast as around two. So only the middle
element is partitioned; its neighbours are the maximum and minimum of the two sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.recording.second_process import call_all

BLOCK = 250_000
"""Cells processed at a time: 1 MB, which fits into the caches."""


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


@dataclass(frozen=True, slots=True)
class Middle:
    """The middle elements of each row of N values. They give the median of the others for every
    element: without one value, those above it move down by one place."""

    low: Floats
    """(2, T) the values at index (N-2)//2 and the next one, sorted"""
    high: Floats
    """(2, T) the same for index (N-1)//2"""

    @property
    def median(self) -> Floats:
        """(T) the median of each row."""
        median: Floats = (self.low[1] + self.high[0]) / 2
        return median

    def between(self, start: int, stop: int) -> Middle:
        """The rows from index `start` up to `stop`."""
        low = self.low[:, start:stop]
        return Middle(low, low if self.high is self.low else self.high[:, start:stop])

    def without(self, values: Floats) -> Floats:
        """(T, k) the median of the row without each of these (T, k) values."""
        low = _other(self.low, values)
        return low if self.high is self.low else np.asarray((low + _other(self.high, values)) / 2)


def _other(two: Floats, values: Floats) -> Floats:
    return np.asarray(np.where(values <= two[0][:, None], two[1][:, None], two[0][:, None]))


def middle(values: Floats, less: Floats | None = None) -> Middle:
    """The middle elements of (T, N) values, or of how much more they are than `less`; N > 1. Rows
    with NaN give NaN; for even N, `low` and `high` are the same."""
    odd = values.shape[1] % 2
    calls = [partial(_middles, values, less, rows) for rows in row_blocks(values)]
    none = np.empty((2 + odd, 0), values.dtype)
    middles = np.concatenate([none, *call_all(calls, values.size)], axis=1)
    low = middles[:2]
    return Middle(low, middles[1:] if odd else low)


def _middles(values: Floats, less: Floats | None, rows: slice) -> Floats:
    """(2 or 3, t) the elements at index N//2 - 1 and N//2, for odd N also the next one, of rows."""
    block = np.array(values[rows], order="C")
    if less is not None:
        np.subtract(block, less[rows], out=block)
    count, ranks = block.shape
    middles = np.empty((3 if ranks % 2 else 2, count), dtype=values.dtype)
    place = ranks // 2
    block.partition(place, axis=1)
    middles[0] = block[:, :place].max(axis=1)
    middles[1] = block[:, place]
    if ranks % 2:
        middles[2] = block[:, place + 1 :].min(axis=1)
    middles[:, np.isnan(block[:, place:].max(axis=1))] = np.nan
    return middles


def known_medians(block: Floats) -> Floats:
    """(N) the median of each row of (N, T) values without NaN; reorders the rows in place."""
    count = block.shape[1]
    block.partition(count // 2, axis=1)
    upper: Floats = block[:, count // 2].copy()
    return upper if count % 2 else (block[:, : count // 2].max(axis=1) + upper) / 2


def blocks(values: Floats) -> Iterator[tuple[slice, Floats]]:
    """The rows of (T, N) values in blocks, as copies that are contiguous in memory."""
    for rows in row_blocks(values):
        yield rows, np.array(values[rows], order="C")


def row_blocks(values: Floats) -> Iterator[slice]:
    """The rows of (T, N) values, as many at a time as fill a block."""
    size = max(1, BLOCK // max(1, values.shape[1]))
    return (slice(start, start + size) for start in range(0, len(values), size))


def median_of_others(values: Floats) -> Floats:
    """(T, R) for each element, the median of the other elements of its row. NaN elements are
    ignored; NaN if there is no other element."""
    others = np.full(values.shape, np.nan, dtype=values.dtype, order="F")
    if values.shape[1] < 2:
        return others
    for rows, block in blocks(values):
        whole = ~np.isnan(block).any(axis=1)
        medians = np.empty_like(block)
        medians[whole] = middle(block[whole]).without(block[whole])
        medians[~whole] = _median_of_known_others(block[~whole])
        others[rows] = medians
    return others


def column_medians(values: Floats) -> Floats:
    """(R) the median of each column, ignoring NaN; NaN for columns of only NaN."""
    medians = np.empty(values.shape[1], dtype=values.dtype)
    for columns in column_blocks(values):
        block = np.array(values[:, columns].T, order="C")
        whole = not np.isnan(block).any()
        medians[columns] = known_medians(block) if whole else row_medians(block)
    return medians


def column_blocks(values: Floats) -> Iterator[slice]:
    """The columns of (T, R) values, as many at a time as fill a block."""
    size = max(1, BLOCK // max(1, len(values)))
    return (slice(start, start + size) for start in range(0, values.shape[1], size))


def row_medians(values: Floats) -> Floats:
    """(T) the median of each row, ignoring NaN; NaN for rows of only NaN."""
    count = np.sum(~np.isnan(values), axis=1)
    ordered = np.sort(values, axis=1)  # NaN sort last
    row = np.arange(len(values))
    low, high = (count - 1) // 2, np.minimum(count // 2, values.shape[1] - 1)
    return np.asarray((ordered[row, low] + ordered[row, high]) / 2)


def _median_of_known_others(values: Floats) -> Floats:
    count = np.sum(~np.isnan(values), axis=1, keepdims=True)
    order = np.argsort(values, axis=1)  # NaN sort last
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(
        place, order, np.broadcast_to(np.arange(values.shape[1]), order.shape).copy(), axis=1
    )
    others = count - (place < count)
    low, high = (others - 1) // 2, others // 2
    last = values.shape[1] - 1

    def without_self(index: npt.NDArray[np.intp]) -> Floats:
        shifted = np.clip(index + (index >= place), 0, last)
        return np.take_along_axis(ordered, shifted, axis=1)

    medians = (without_self(low) + without_self(high)) / 2
    return np.where(others > 0, medians, np.nan)
