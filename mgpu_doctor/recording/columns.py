"""Step records stored by field: they need a third of the memory, and a field is read by itself.

A value that is the same in all records of a rank (mostly an unknown one) is stored once; columns
that are the same on many ranks (numbers of steps and collectives) are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from struct import Struct
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess import layout

from .column_file import Column, ColumnFile, StoredColumn
from .records import STEP_DTYPE, Array

Rows: TypeAlias = "slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]"

_PHASES = len(layout.PHASES)
_FIELDS = {name: (kind, at) for name, (kind, at, *_) in (STEP_DTYPE.fields or {}).items()}
_SECONDS = Struct(f"={_PHASES}f")
_ALIKE = ("seq", "step", "group_seq")
"""Counters that are usually the same on all ranks."""
_WORD = 4
_FIRST, _LAST = 24 // _WORD, 124 // _WORD
"""The 32-bit words of a record that may be constant: from `step` to `resident_bytes`."""
_PHASE = 32 // _WORD - _FIRST
"""The first phase among these words."""
_WORDS = {
    name: (at // _WORD - _FIRST, (at + kind.itemsize - 1) // _WORD - _FIRST)
    for name, (kind, at) in _FIELDS.items()
    if name != "phases"
}
"""The first and the last word of each other field; negative if it always differs."""


class Columns:
    """Step records, indexed like the structured array they come from. Read-only."""

    __slots__ = ("__weakref__", "_common", "_differing", "_first", "_length")

    dtype = STEP_DTYPE

    def __init__(
        self,
        length: int,
        common: bytes,
        differing: Mapping[str | int, Column | StoredColumn],
        first: int = 0,
    ) -> None:
        self._length = length
        self._first = first
        """Start of the records in the stored differences, which may contain more."""
        self._common = common
        """A complete record with every constant field."""
        self._differing = differing
        """Columns by name; phases by number."""

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: str) -> Column: ...
    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> np.void: ...
    @overload
    def __getitem__(self, key: Rows) -> Columns: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._phases() if key == "phases" else self._column(key, *_FIELDS[key])
        if isinstance(key, (int, np.integer)):
            at = range(self._length)[key]
            return self[at : at + 1].copy()[0]
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step == 1:
                length = max(0, stop - start)
                return Columns(length, self._common, self._differing, self._first + start)
            length = len(range(start, stop, step))
        else:
            length = int(key.sum()) if key.dtype == bool else len(key)
        chosen = {name: self._part(column)[key] for name, column in self._differing.items()}
        return Columns(length, self._common, chosen)

    def __setitem__(self, key: str, value: npt.ArrayLike) -> None:
        raise ValueError("columns are read-only: change a copy()")  # as NumPy's read-only arrays

    def phase(self, number: int) -> Column:
        """(n) seconds of one phase, NaN: not measured."""
        _, at = _FIELDS["phases"]
        return self._column(number, np.dtype("f4"), at + 4 * number)

    def same(self, name: str) -> bytes | None:
        """Returns a field's value if it is the same in all records; None if not, or without
        records."""
        if name in self._differing or not self._length:
            return None
        kind, at = _FIELDS[name]
        return self._common[at : at + kind.itemsize]

    def measured(self, phase: int) -> bool:
        """Returns whether a phase is known in any record, as far as that is cheap to see."""
        return phase in self._differing or not isnan(self.common_phases()[phase])

    def common_phases(self) -> tuple[float, ...]:
        """Returns the seconds of each constant phase; NaN: not measured."""
        return _SECONDS.unpack_from(self._common, _FIELDS["phases"][1])

    def phases_that_differ(self) -> tuple[list[int], Column]:
        """Returns the k phases that are not the same in every record, and (k, n) seconds."""
        numbers = [name for name in self._differing if isinstance(name, int)]
        columns = [self._differing[number] for number in numbers]
        together = StoredColumn.read_together(columns, self._first, self._length)
        if together is None:
            together = np.array([self._part(column) for column in columns], np.float32)
        return numbers, together.reshape(len(numbers), self._length)

    def phase_sums(self) -> Column:
        """Returns the same as the function of this name."""
        sums = np.array(self.common_phases()) * self._length
        numbers, seconds = self.phases_that_differ()
        totals = np.add.reduce(seconds, axis=1, dtype=np.float64)
        if np.isnan(totals).any():
            totals = np.nansum(seconds, axis=1, dtype=np.float64)
        sums[numbers] = totals
        sums[np.isnan(sums)] = 0.0
        return sums

    def copy(self) -> Array:
        """Returns a writable structured array of the records."""
        records = np.zeros(self._length, STEP_DTYPE)
        for name in _FIELDS:
            records[name] = self[name]
        return records

    @property
    def nbytes(self) -> int:
        """Returns the bytes that the structured array would take."""
        return self._length * STEP_DTYPE.itemsize

    def _column(self, name: str | int, kind: np.dtype[Any], at: int) -> Column:
        known = self._differing.get(name)
        if known is not None:
            return self._part(known)
        same: Column = np.ndarray((self._length,), kind, self._common, at, (0,))
        return same

    def _part(self, column: Column | StoredColumn) -> Column:
        if isinstance(column, StoredColumn):
            return column.read(self._first, self._length)
        if len(column) == self._length:
            return column
        part: Column = column[self._first : self._first + self._length]
        return part

    def _phases(self) -> Column:
        together = np.empty((self._length, _PHASES), np.float32)
        together[:] = np.frombuffer(self._common, np.float32, _PHASES, _FIELDS["phases"][1])
        numbers, seconds = self.phases_that_differ()
        together[:, numbers] = seconds.T
        return together


def phase_of(records: Array | Columns, number: int) -> Column:
    """(n) seconds of one phase, NaN: not measured."""
    if isinstance(records, Columns):
        return records.phase(number)
    seconds: Column = records["phases"][:, number]
    return seconds


def phase_sums(records: Array | Columns) -> Column:
    """Returns (10) seconds of each phase over all records; unmeasured values count as 0."""
    if isinstance(records, Columns):
        return records.phase_sums()
    sums = np.asarray(records["phases"].sum(axis=0, dtype=np.float64))
    partly = np.flatnonzero(np.isnan(sums))
    sums[partly] = np.nansum(records["phases"][:, partly], axis=0, dtype=np.float64)
    return sums


def select(records: Array | Columns, kept: npt.NDArray[np.bool_]) -> Array | Columns:
    """Returns the chosen records; a view instead of a copy if they are the last ones."""
    first = int(kept.argmax()) if len(kept) else 0
    return records[first:] if kept[first:].all() else records[kept]


class Packer:
    """Makes columns from the records of many ranks; puts them into `file` if there is one."""

    def __init__(self, file: ColumnFile | None = None) -> None:
        self._newest: dict[str, Column] = {}
        self._file = file

    def pack(self, records: Array | Columns) -> Columns:
        """Returns the same records, by field."""
        if isinstance(records, Columns):
            return records
        count = len(records)
        if not count:
            return Columns(0, bytes(STEP_DTYPE.itemsize), {})
        words = records.view(np.uint32).reshape(count, -1)[:, _FIRST:_LAST]
        by_word = np.ascontiguousarray(words.T)
        differs = (by_word != by_word[:, :1]).any(axis=1).tolist()
        shared: dict[str | int, Column] = {}
        own: dict[str | int, Column] = {
            number: by_word[_PHASE + number].view(np.float32)
            for number in range(_PHASES)
            if differs[_PHASE + number]
        }
        for name, (first, last) in _WORDS.items():
            if first < 0 or differs[first] or differs[last]:
                if name in _ALIKE:
                    shared[name] = self._once(name, records[name])
                else:
                    own[name] = np.ascontiguousarray(records[name])
        return Columns(count, records[:1].tobytes(), {**shared, **self._kept(own)})

    def _kept(self, columns: dict[str | int, Column]) -> Mapping[str | int, Column | StoredColumn]:
        if self._file is not None and columns:
            return dict(zip(columns, self._file.stored([*columns.values()]), strict=True))
        copies = {name: column.copy() for name, column in columns.items()}
        for column in copies.values():
            column.flags.writeable = False
        return copies

    def _once(self, name: str, values: Column) -> Column:
        """Returns the previous rank's column if it is equal, as counters usually are."""
        known = self._newest.get(name)
        if known is None or not np.array_equal(known, values):
            known = self._newest[name] = values.copy()
            known.flags.writeable = False
        return known
