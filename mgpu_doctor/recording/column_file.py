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

    def stored(self, columns: Sequence[Column]) -> Sequence[Column | StoredColumn]:
        """Returns the same columns, stored in the file; as they are if it has no room."""
        try:
            at = self.append(*(column.data for column in columns))
        except OSError:
            return columns
        stored = []
        for column in columns:
            stored.append(StoredColumn(self, at, column.dtype, len(column)))
            at += column.nbytes
        return stored


class StoredColumn:
    """A column in a file."""

    __slots__ = ("_at", "_file", "_kind", "_length")

    def __init__(self, file: ColumnFile, at: int, kind: np.dtype[Any], length: int) -> None:
        self._file = file
        self._at = at
        self._kind = kind
        self._length = length

    def __len__(self) -> int:
        return self._length

    def read(self, first: int, length: int) -> Column:
        """Returns so many of its values, read-only."""
        size = self._kind.itemsize
        raw = self._file.read(self._at + first * size, length * size)
        return np.frombuffer(raw, self._kind)

    @classmethod
    def read_together(
        cls, columns: Sequence[Column | StoredColumn], first: int, length: int
    ) -> Column | None:
        """(k, `length`) values of k columns that were stored one behind the other, read at once;
        None if they were not."""
        stored = [column for column in columns if isinstance(column, cls)]
        if not stored or len(stored) < len(columns):
            return None
        start = stored[0]
        count, size = len(start), len(start) * start._kind.itemsize
        for place, column in enumerate(stored):
            if (column._at, column._length) != (start._at + place * size, count):
                return None
        raw = start._file.read(start._at, len(stored) * size)
        together: Column = np.frombuffer(raw, start._kind).reshape(len(stored), count)
        return together[:, first : first + length]
