"""Columns of large jobs in a temporary file, so that they take no memory.

The file has no name, only this user can read it, and it is gone with the process. It lies in
`TMPDIR`, or else in /var/tmp, which is on a disk more often than /tmp.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[Any]

LARGE_FILES = "/var/tmp"


class ColumnFile:
    """A growing file. Raises OSError if it cannot be made."""

    def __init__(self) -> None:
        folder = os.environ.get("TMPDIR") or LARGE_FILES
        usable = os.access(folder, os.W_OK | os.X_OK)
        self._file = tempfile.TemporaryFile(  # noqa: SIM115 (open as long as its columns are used)
            buffering=0, dir=folder if usable else None
        )
        self._descriptor = self._file.fileno()
        self._end = 0

    def append(self, *parts: memoryview) -> int:
        """Returns where the bytes begin. Raises OSError if there is no room."""
        begin, size = self._end, sum(part.nbytes for part in parts)
        if os.pwritev(self._descriptor, parts, begin) != size:
            raise OSError("the temporary file could not be written")
        self._end += size
        return begin

    def read(self, begin: int, size: int) -> bytes:
        """Returns what was written there."""
        return os.pread(self._descriptor, size, begin)

    def store(self, tables: Sequence[Column]) -> Sequence[Column | StoredTable]:
        """Returns the same (k, n) tables, stored in the file; as they are if it has no room."""
        try:
            at = self.append(*(table.data for table in tables))
        except OSError:
            return tables
        stored = []
        for table in tables:
            stored.append(StoredTable(self, at, table.dtype, table.shape[1]))
            at += table.nbytes
        return stored


class StoredTable:
    """A table in a file: a row of `n` values for each rank."""

    __slots__ = ("_at", "_file", "_kind", "_width")

    def __init__(self, file: ColumnFile, at: int, kind: np.dtype[Any], width: int) -> None:
        self._file = file
        self._at = at
        self._kind = kind
        self._width = width

    def row(self, number: int, first: int, length: int) -> Column:
        """(`length`) values of one row, read-only."""
        size = self._kind.itemsize
        raw = self._file.read(self._at + (number * self._width + first) * size, length * size)
        return np.frombuffer(raw, self._kind)

    def rows(self, start: int, stop: int) -> Column:
        """(k, n) values of the rows from `start` up to `stop`, read at once and read-only."""
        size = self._width * self._kind.itemsize
        raw = self._file.read(self._at + start * size, (stop - start) * size)
        return np.frombuffer(raw, self._kind).reshape(stop - start, self._width)
