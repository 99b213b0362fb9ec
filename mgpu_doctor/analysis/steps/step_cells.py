"""The (step, rank) cells of joined records, read from the ranks' records on demand.

Ten thousand ranks with a thousand steps have a hundred million phase times. Only what is used is
copied, as 32-bit floats (microseconds in a step of ten seconds).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.case.model import Records
from mgpu_doctor.recording.columns import Columns, phase_of
from mgpu_doctor.recording.record_chunks import chunks

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Result = TypeVar("Result")
Rows = slice | Ints
"""Indices of a rank's records that are joined steps."""

FEW_CELLS = 200_000
"""Up to this many cells (8 MB), phases are kept in memory once they are read."""


def is_constant(values: npt.NDArray[Any]) -> bool:
    """Whether all values are known to be the same: they take no memory."""
    return not any(values.strides)


def each_once(arrays: Sequence[Any], change: Callable[[Any], Result]) -> list[Result]:
    """`change` applied to every array, once per distinct object."""
    changed = {key: change(array) for key, array in {id(array): array for array in arrays}.items()}
    return [changed[id(array)] for array in arrays]


class Cells:
    """Records of R ranks and the T rows of each that are the same steps."""

    __slots__ = ("_records", "_rows", "chunks", "shape")

    def __init__(self, records: Sequence[Records], rows: Sequence[Rows], count: int) -> None:
        self._records = tuple(records)
        self._rows = tuple(rows)
        self.shape = (count, len(self._records))
        self.chunks = tuple(chunks(self._records, self._rows))
        """All cells; `places` are columns."""

    def between(self, start: int, stop: int) -> Cells:
        """The steps from index `start` up to `stop`."""
        rows = each_once(
            self._rows,
            lambda row: (
                slice(row.start + start, row.start + stop)
                if isinstance(row, slice)
                else row[start:stop]
            ),
        )
        return Cells(self._records, rows, stop - start)

    def column(self, name: str, rank: int) -> npt.NDArray[Any]:
        """(T) or (T, 10) a field of the records of column `rank`, unconverted."""
        values: npt.NDArray[Any] = self._records[rank][name][self._rows[rank]]
        return values

    def measured(self, phase: int, rank: int) -> bool:
        """Whether a phase of column `rank` may have been measured (a cheap check)."""
        records = self._records[rank]
        return not isinstance(records, Columns) or records.measured(phase)

    def _same(self, name: str) -> npt.NDArray[Any] | None:
        """() the value of a field if it is known to be the same in all records (a cheap check)."""
        values = {chunk.same(name) for chunk in self.chunks}
        raw = values.pop() if len(values) == 1 else None
        return None if raw is None else np.frombuffer(raw, Columns.dtype[name]).reshape(())

    def phase(self, number: int, rank: int) -> Floats:
        """(T) seconds of a phase of the rank in column `rank`."""
        seconds: Floats = phase_of(self._records[rank], number)[self._rows[rank]]
        return seconds

    def field(self, name: str, kind: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """(T, R) a field, read-only. The cells of a rank are contiguous in memory; a field that is
        equal in all cells (usually: unknown) takes no memory."""
        same = self._same(name)
        if same is not None:
            return np.broadcast_to(same.astype(kind), self.shape)
        values = np.empty(self.shape[::-1], dtype=kind)
        for chunk in self.chunks:
            values[chunk.places] = chunk[name]
        first = values[:1, :1]
        if np.all(np.isnan(values) if np.isnan(first).any() else values == first):
            return np.broadcast_to(first, self.shape)
        return np.asarray(values.T)

    def seconds(self, name: str) -> Floats:
        """(T, R) a field of nanoseconds, in seconds."""
        values = np.empty(self.shape[::-1], dtype=np.float32)
        for chunk in self.chunks:
            values[chunk.places] = chunk[name] * 1e-9
        return np.asarray(values.T)


class Phases:
    """(T, R, 10) seconds, NaN: not measured. Indexed like an array; reads only the indexed ranks
    and phases."""

    __slots__ = ("_cells", "_whole")

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._whole: Floats | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self._cells.shape, len(PHASES))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        del copy  # it always is one
        whole = self._of_ranks(np.arange(self.shape[1]), slice(None))
        return whole.astype(dtype or whole.dtype, copy=False)

    def __getitem__(self, key: Any) -> Floats:
        steps, ranks, phase = _three(key)
        if self._whole is None and self.shape[0] * self.shape[1] <= FEW_CELLS:
            self._whole = np.asarray(self)
        paired = sum(np.ndim(index) > 0 for index in (steps, ranks, phase)) > 1
        if self._whole is not None or paired:
            whole = np.asarray(self) if self._whole is None else self._whole
            return np.asarray(whole[steps, ranks, phase])
        if np.ndim(ranks) == 0 and not isinstance(ranks, slice):
            if isinstance(phase, int):
                return np.asarray(self._cells.phase(phase, int(ranks))[steps])
            return np.asarray(self._cells.column("phases", int(ranks))[..., phase][steps])
        return np.asarray(self._of_ranks(np.arange(self.shape[1])[ranks], phase)[steps])

    def _of_ranks(self, ranks: Ints, phase: Any) -> Floats:
        """(T, k) seconds of one phase of k ranks, or (T, k, n) of n phases."""
        columns = ranks.tolist()
        if isinstance(phase, int) and not any(
            self._cells.measured(phase, rank) for rank in columns
        ):
            return np.broadcast_to(np.float32(np.nan), (self.shape[0], len(columns)))
        of_one = np.empty(len(PHASES))[phase].shape
        values = np.empty((len(ranks), self.shape[0], *of_one), dtype=np.float32)
        for place, rank in enumerate(columns):
            if isinstance(phase, int):
                values[place] = self._cells.phase(phase, rank)
            else:
                values[place] = self._cells.column("phases", rank)[..., phase]
        return np.asarray(values.swapaxes(0, 1))


def _three(key: Any) -> tuple[Any, Any, Any]:
    """An index of steps, ranks and phases; parts that are not given select all."""
    given = key if isinstance(key, tuple) else (key,)
    if given and given[0] is Ellipsis:
        given = (slice(None),) * (4 - len(given)) + given[1:]
    steps, ranks, phase = (*given, slice(None), slice(None), slice(None))[:3]
    return steps, ranks, list(phase) if isinstance(phase, tuple) else phase
