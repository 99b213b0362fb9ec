"""Step records stored by field: they need a third of the memory, and a field is read by itself.

A block holds the records of some ranks that have equally many. A value that is the same in all
records of a rank (mostly an unknown one) is stored once; columns that are the same on many ranks
(numbers of steps and collectives) are shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan, prod
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess import layout

from .column_file import Column, ColumnFile, StoredTable
from .records import STEP_DTYPE, Array, check_plausible, check_values

Name: TypeAlias = "str | int"
"""A field; a phase by its number."""
Rows: TypeAlias = "slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp]"

_PHASES = len(layout.PHASES)
_FIELDS = {name: (kind, at) for name, (kind, at, *_) in (STEP_DTYPE.fields or {}).items()}
_SECOND = np.dtype("f4")
BLOCK = 16_384
"""Most records in a block of several ranks: at most 128 KiB for each field, which fits into the
caches. The C library maps memory anew for each larger read, which took a second in 10 million
records."""
_RECORD = STEP_DTYPE.itemsize
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


class Block:
    """The step records of k ranks, n of each, by field. Read-only."""

    __slots__ = ("_constants", "shared", "tables")

    def __init__(
        self,
        constants: bytes,
        shared: Mapping[Name, Column],
        tables: Mapping[Name, Column | StoredTable],
    ) -> None:
        self._constants = constants
        """A complete record of each rank, with all of its constant fields."""
        self.shared = shared
        """(n) each: what differs from step to step and is the same on all ranks"""
        self.tables = tables
        """(k, n) each: what differs on any rank"""

    def differs(self, name: Name) -> bool:
        """Returns whether a field may differ from record to record."""
        return name in self.tables or name in self.shared

    def constants(self, row: int) -> bytes:
        """Returns a complete record of one rank, with all of its constant fields."""
        return self._constants[row * _RECORD : (row + 1) * _RECORD]

    def phases_that_differ(self) -> list[int]:
        """Returns the numbers of the phases that may differ from record to record."""
        return [name for name in self.tables if isinstance(name, int)]

    def column(self, name: Name, row: int, first: int, length: int) -> Column:
        """(`length`) values of one rank."""
        if name in self.shared:
            return _part(self.shared[name], first, length)
        table = self.tables.get(name)
        if table is None:
            kind, at = _place_of(name)
            same: Column = np.ndarray((length,), kind, self._constants, row * _RECORD + at, (0,))
            return same
        if isinstance(table, StoredTable):
            return table.row(row, first, length)
        return _part(table[row], first, length)

    def cells(self, name: Name, start: int, stop: int, first: int, length: int) -> Column:
        """(k, `length`) values of the ranks from row `start` up to `stop`."""
        if name in self.shared:
            part = _part(self.shared[name], first, length)
            return np.broadcast_to(part, (stop - start, length))
        table = self.tables.get(name)
        if table is None:
            kind, at = _place_of(name)
            at += start * _RECORD
            shape = stop - start, length
            same: Column = np.ndarray(shape, kind, self._constants, at, (_RECORD, 0))
            return same
        rows = table.rows(start, stop) if isinstance(table, StoredTable) else table[start:stop]
        return _part(rows, first, length)


def _part(values: Column, first: int, length: int) -> Column:
    """Returns the chosen records of (n) or (k, n) values."""
    if values.shape[-1] == length:
        return values
    part: Column = values[..., first : first + length]
    return part


def _place_of(name: Name) -> tuple[np.dtype[Any], int]:
    if isinstance(name, str):
        return _FIELDS[name]
    return _SECOND, _FIELDS["phases"][1] + _SECOND.itemsize * name


class Columns:
    """Step records of one rank, indexed like the structured array they come from. Read-only."""

    __slots__ = ("__weakref__", "_length", "block", "first", "row")

    dtype = STEP_DTYPE

    def __init__(self, block: Block, row: int, length: int, first: int = 0) -> None:
        self.block = block
        self.row = row
        """The rank's in the block."""
        self.first = first
        """Start of the records in the block, which may contain more."""
        self._length = length

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
            return self._phases() if key == "phases" else self._column(key)
        if isinstance(key, (int, np.integer)):
            at = range(self._length)[key]
            return self[at : at + 1].copy()[0]
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step == 1:
                length = max(0, stop - start)
                return Columns(self.block, self.row, length, self.first + start)
            length = len(range(start, stop, step))
        else:
            length = int(key.sum()) if key.dtype == bool else len(key)
        names: list[Name] = [*_FIELDS, *range(_PHASES)]
        chosen = {name: self._column(name)[key][None] for name in names if self.block.differs(name)}
        return Columns(Block(self.block.constants(self.row), {}, chosen), 0, length)

    def __setitem__(self, key: str, value: npt.ArrayLike) -> None:
        raise ValueError("columns are read-only: change a copy()")  # as NumPy's read-only arrays

    def phase(self, number: int) -> Column:
        """(n) seconds of one phase, NaN: not measured."""
        return self._column(number)

    def same(self, name: str) -> bytes | None:
        """Returns a field's value if it is known to be the same in all records; None if not, or
        without records."""
        if self.block.differs(name) or not self._length:
            return None
        kind, at = _FIELDS[name]
        return self.block.constants(self.row)[at : at + kind.itemsize]

    def measured(self, phase: int) -> bool:
        """Returns whether a phase is known in any record, as far as that is cheap to see."""
        return self.block.differs(phase) or not isnan(self._common_phases()[phase])

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

    def _column(self, name: Name) -> Column:
        return self.block.column(name, self.row, self.first, self._length)

    def _phases(self) -> Column:
        together = np.empty((self._length, _PHASES), np.float32)
        together[:] = self._common_phases()
        for number in self.block.phases_that_differ():
            together[:, number] = self._column(number)
        return together

    def _common_phases(self) -> Column:
        """Returns the seconds of each constant phase; NaN: not measured."""
        constants = self.block.constants(self.row)
        return np.frombuffer(constants, _SECOND, _PHASES, _FIELDS["phases"][1])


def phase_of(records: Array | Columns, number: int) -> Column:
    """(n) seconds of one phase, NaN: not measured."""
    if isinstance(records, Columns):
        return records.phase(number)
    seconds: Column = records["phases"][:, number]
    return seconds


def select(records: Array | Columns, kept: npt.NDArray[np.bool_]) -> Array | Columns:
    """Returns the chosen records; a view instead of a copy if they are the last ones."""
    first = int(kept.argmax()) if len(kept) else 0
    return records[first:] if kept[first:].all() else records[kept]


class Packer:
    """Makes columns from the records of many ranks; puts them into `file` if there is one."""

    def __init__(self, file: ColumnFile | None = None) -> None:
        self._newest: dict[Name, Column] = {}
        self._file = file
        self._words = np.empty(0, np.uint32)
        """Used again for each block: new memory would take longer to map than to fill."""

    def pack(self, records: Array | Columns) -> Columns:
        """Returns the same records, by field."""
        return self.pack_all([records])[0]

    def pack_all(
        self, records_by_rank: Sequence[Array | Columns], *, checked: bool = False
    ) -> list[Columns]:
        """Returns the same records of each rank, by field; ranks with equally many share blocks.
        `checked`: raises ImplausibleError if `plausible` would change any of them."""
        ranks = [
            records.copy() if isinstance(records, Columns) else records
            for records in records_by_rank
        ]
        by_rank: dict[int, Columns] = {}
        for places in _alike(ranks):
            block = self._block([ranks[place] for place in places], checked=checked)
            for row, place in enumerate(places):
                by_rank[place] = Columns(block, row, len(ranks[place]))
        return [by_rank[place] for place in range(len(ranks))]

    def _block(self, ranks: Sequence[Array], *, checked: bool) -> Block:
        constants = np.zeros(len(ranks), STEP_DTYPE)
        for row, records in enumerate(ranks if len(ranks[0]) else ()):
            constants[row] = records[0]
        tables = dict(self._differing(ranks))
        if checked:
            check_plausible(constants)
            for name, table in tables.items():
                check_values(name, table)
        shared: dict[Name, Column] = {
            name: self._once(name, tables.pop(name)[0])
            for name in _ALIKE
            if name in tables and (tables[name] == tables[name][0]).all()
        }
        return Block(constants.tobytes(), shared, self._kept(tables))

    def _differing(self, ranks: Sequence[Array]) -> Iterator[tuple[Name, Column]]:
        """Yields (k, n) tables of what is not the same in all records of each rank. They are valid
        until the next call."""
        shape = _LAST - _FIRST, len(ranks), len(ranks[0])
        if self._words.size < prod(shape):
            self._words = np.empty(prod(shape), np.uint32)
        words = self._words[: prod(shape)].reshape(shape)
        for row, records in enumerate(ranks):
            by_record = records.view(np.uint32).reshape(len(records), _RECORD // _WORD)
            words[:, row] = by_record[:, _FIRST:_LAST].T
        differs = [False] * len(words)
        if words.size:
            differs = (words.min(axis=2) != words.max(axis=2)).any(axis=1).tolist()
        for number in range(_PHASES):
            if differs[_PHASE + number]:
                yield number, words[_PHASE + number].view(np.float32)
        for name, (first, last) in _WORDS.items():
            if first < 0 or differs[first] or differs[last]:
                kind, _ = _FIELDS[name]
                if kind.itemsize == _WORD:
                    yield name, words[first].view(kind)
                else:
                    yield name, np.stack([records[name] for records in ranks])

    def _kept(self, tables: Mapping[Name, Column]) -> Mapping[Name, Column | StoredTable]:
        values: Sequence[Column | StoredTable] = [*tables.values()]
        if self._file is not None and tables:
            values = self._file.store([*tables.values()])
        kept = [value if isinstance(value, StoredTable) else value.copy() for value in values]
        for table in kept:
            if not isinstance(table, StoredTable):
                table.flags.writeable = False
        return dict(zip(tables, kept, strict=True))

    def _once(self, name: str, values: Column) -> Column:
        """Returns the previous block's column if it is equal, as counters usually are."""
        known = self._newest.get(name)
        if known is None or not np.array_equal(known, values):
            known = self._newest[name] = values.copy()
            known.flags.writeable = False
        return known


def _alike(ranks: Sequence[Array]) -> Iterator[list[int]]:
    """Yields the places of ranks with equally many records, for one block each."""
    by_count: dict[int, list[int]] = {}
    for place, records in enumerate(ranks):
        by_count.setdefault(len(records), []).append(place)
    for count, places in by_count.items():
        most = max(1, BLOCK // max(1, count))
        for start in range(0, len(places), most):
            yield places[start : start + most]
