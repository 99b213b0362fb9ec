"""Step records of many ranks, side by side: an operation on thousands of ranks is then some hundred
operations on tables of ranks and steps, which stay in the processor's caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES

from .column_file import Column
from .columns import Columns, Name, Rows, phase_of
from .records import Array

EVERY: Rows = slice(None)
MOST_COPIED = 1 << 14
"""Records that are put side by side where they are not stored by field: 2 MiB, which stay in the
processor's caches while one field after another is read."""


class Chunk:
    """Records of k ranks, n of each. Fields are (k, n) and read-only."""

    __slots__ = ("_records", "_rows", "_start", "_stop", "_within", "places")

    def __init__(
        self, places: Sequence[int], records: Sequence[Array | Columns], rows: Rows
    ) -> None:
        self.places: npt.NDArray[np.intp] = np.array(places)
        """(k) the place of each rank in the sequence that was divided"""
        self._records = records
        self._rows = rows
        numbers = [steps.row for steps in records if isinstance(steps, Columns)] or [0]
        self._start, self._stop = min(numbers), max(numbers) + 1
        in_order = numbers == [*range(self._start, self._stop)]
        self._within = slice(None) if in_order else np.array(numbers) - self._start

    def __getitem__(self, name: Name) -> Column:
        """(k, n) values of a field, or of the phase with this number in seconds (NaN: not
        measured)."""
        first = self._records[0]
        if isinstance(first, Columns):
            cells = first.block.cells(name, self._start, self._stop, first.first, len(first))
            return cells[self._within][:, self._rows]
        if isinstance(name, str):
            return self._side_by_side([records[name] for records in self._records])
        return self._side_by_side([phase_of(records, name) for records in self._records])

    def phases(self) -> Iterator[tuple[list[int], Column]]:
        """Yields numbers of phases, and the (p, k, n) values of these p phases: one by one, or all
        together if the records are not stored by field."""
        if isinstance(self._records[0], Columns):
            yield from (([number], self[number][None]) for number in range(len(PHASES)))
        else:
            values = self._side_by_side([records["phases"] for records in self._records])
            yield [*range(len(PHASES))], np.ascontiguousarray(np.moveaxis(values, 2, 0))

    def _side_by_side(self, columns: Sequence[Column]) -> Column:
        chosen = [column[self._rows] for column in columns]
        return chosen[0][None] if len(chosen) == 1 else np.stack(chosen)

    def differs(self, name: Name) -> bool:
        """Returns whether a field may differ from step to step."""
        first = self._records[0]
        return not isinstance(first, Columns) or first.block.differs(name)

    def measured(self, phase: int) -> bool:
        """Returns whether a phase is known in any record, as far as that is cheap to see."""
        return self.differs(phase) or not np.isnan(self[phase][:, :1]).all()

    def same(self, name: Name) -> bytes | None:
        """Returns a field's value if it is known to be the same in all records of all ranks."""
        if self.differs(name):
            return None
        values = self[name][:, :1]
        first = values[:1].tobytes()
        return first if values.tobytes() == first * len(values) else None


def chunks(
    records: Sequence[Array | Columns], rows: Sequence[Rows] | None = None
) -> Iterator[Chunk]:
    """Yields the records of all ranks, those that are stored alike together. `rows`: which records
    of each rank; ranks with the same ones share the object."""
    together: dict[Any, list[int]] = {}
    for place, steps in enumerate(records):
        how = (id(steps.block), steps.first) if isinstance(steps, Columns) else (steps.dtype,)
        together.setdefault((*how, len(steps), rows and id(rows[place])), []).append(place)
    for places in together.values():
        chosen, first = EVERY if rows is None else rows[places[0]], records[places[0]]
        most = max(1, MOST_COPIED // max(1, len(first)))
        at_once = len(places) if isinstance(first, Columns) else most
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            yield Chunk(some, [records[place] for place in some], chosen)
