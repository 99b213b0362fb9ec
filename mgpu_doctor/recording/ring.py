"""Reads a ring of records that another process may be writing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .boxheader import read_at, word
from .records import Array, sound, whole

_MOST = 1 << 62
"""A larger sequence number is invalid."""
_FEW = 1024
"""Records that are copied in some microseconds. Where no more are kept, there are very many ranks,
and room for more would take more memory than the records."""


class Ring:
    """The records of one ring read so far; `poll` adds new ones.

    Every record is validated by itself: by its CRC, and by its sequence number, which must belong
    to its slot. The cursor only says where to read and what to expect.
    """

    def __init__(
        self,
        fd: int,
        *,
        offset: int,
        capacity: int,
        dtype: np.dtype[np.void],
        cursor_at: int,
        clean: Callable[[Array], Array],
        read: Callable[[int, int, int], bytes | memoryview] = read_at,
    ) -> None:
        self._fd = fd
        self._read = read
        self._offset = offset
        self._capacity = capacity
        self._most = capacity
        self._dtype = dtype
        self._cursor_at = cursor_at
        self._clean = clean
        self._polled = False
        self._counted = 0
        self._buffer: Array = np.empty(0, dtype)
        self._peeked: np.void | None = None
        """The newest record that was peeked at: a complete one never changes."""
        self._used = 0
        self.kept: Array = self._buffer
        """The newest records by `seq`, at most `_most`. Never changed in place."""
        self.newest = 0
        self.lost = 0
        """Number of records that were written but are damaged."""

    @property
    def overwritten(self) -> int:
        """Number of valid records that are not among `kept`, because the ring overwrote them, or
        because there are more than `limit` says."""
        return max(0, self.newest - len(self.kept) - self.lost)

    def limit(self, records: int) -> None:
        """Keeps only the newest records, at most so many, from the next poll on."""
        self._most = min(records, self._capacity)

    def poll(self, header: bytes) -> Array:
        """Reads up to the cursor in the box's header; returns the new records by `seq`."""
        if not self._capacity:
            return self.kept
        cursor = word(header, self._cursor_at)
        if not self._polled and self._most < min(cursor, self._capacity) and cursor < _MOST:
            self._skip(cursor - self._most)
        new = self._fetch(cursor)
        if not len(new) and not len(self.kept) and self.newest:  # the cursor is invalid
            self._skip(0)
            new = self._fetch(cursor)
        if len(new):
            self._keep(new)
        if cursor > self._counted:
            self._count(cursor)
        return new

    def peek(self) -> np.void | None:
        """Returns the newest record, which `poll` may not have read yet: two reads of a few bytes,
        or one while there is no newer record. None: there is none, or it is damaged."""
        cursor = word(read_at(self._fd, self._cursor_at, 8), 0)
        if self._peeked is not None and int(self._peeked["seq"]) == cursor:
            return self._peeked
        if not self._capacity or not 0 < cursor < _MOST:
            return None
        size = self._dtype.itemsize
        slot = (cursor - 1) % self._capacity
        raw = read_at(self._fd, self._offset + slot * size, size)
        records = whole(raw, self._dtype)
        if not len(records) or int(records["seq"][0]) != cursor:
            return None
        if not len(sound(raw, self._dtype, np.arange(1))):
            return None
        self._peeked = next(iter(self._clean(records)), None)
        return self._peeked

    def _skip(self, records: int) -> None:
        """Continues after the first `records` of the ring."""
        self.newest = self._counted = records
        self._polled = records > 0

    def _fetch(self, cursor: int) -> Array:
        """Reads one record beyond the cursor: a writer killed just before it moved the cursor
        leaves a complete record there. On the first poll, the slots beyond it must be blank, as in
        a ring that was never filled; if not, or if the cursor is invalid, the whole ring is read.
        Later records were written after the cursor was read, perhaps along with others in slots
        already read: the next poll reads them all."""
        count = cursor + 1 - self.newest
        most = cursor + 1 if self._polled and 0 <= count < _MOST else _MOST
        if not 0 <= count <= self._capacity:
            count = self._capacity
        elif not self._polled and count < self._capacity:
            beyond = read_at(self._fd, self._offset + count * self._dtype.itemsize, 8)
            count = self._capacity if any(beyond) else count
        self._polled = True
        first = self.newest % self._capacity
        size = self._dtype.itemsize
        until_end = min(count, self._capacity - first)
        raw = self._read(self._fd, self._offset + first * size, until_end * size)
        if count > until_end:
            raw = bytes(raw) + read_at(self._fd, self._offset, (count - until_end) * size)
        if count == 1 and word(raw, 0) != self.newest + 1:  # usual case: nothing new
            return self.kept[:0]
        records = whole(raw, self._dtype)
        seq = records["seq"]
        if len(new := self._in_turn(raw, records)):
            return self._clean(new)
        slots = (first + np.arange(len(seq), dtype=np.uint64)) % np.uint64(self._capacity)
        own = (seq - np.uint64(1)) % np.uint64(self._capacity) == slots
        own &= (seq > np.uint64(self.newest)) & (seq <= np.uint64(min(most, _MOST)))
        values = sound(raw, self._dtype, np.flatnonzero(own))
        if (np.diff(seq[values].view(np.int64)) < 0).any():
            values = values[np.argsort(seq[values])]
        if len(values):  # a slot whose newest record is damaged may contain one of the previous lap
            values = values[seq[values] + np.uint64(self._capacity) > seq[values[-1]]]
        return self._clean(records[values])

    def _in_turn(self, raw: bytes | memoryview, records: Array) -> Array:
        """Returns all of `records`, as a view, if they are the next ones and intact, except for a
        last one not yet written: the usual case. Empty otherwise."""
        seq = records["seq"]
        count = len(seq) - 1 if len(seq) > 1 and not seq[-1] else len(seq)
        next_ones = np.arange(self.newest + 1, self.newest + 1 + count, dtype=np.uint64)
        if not np.array_equal(seq[:count], next_ones):
            return records[:0]
        believed = sound(raw, self._dtype, np.arange(count))
        return records[:count] if len(believed) == count else records[:0]

    def _keep(self, new: Array) -> None:
        """Appends in place while there is room, so that a poll costs only the new records. Earlier
        views never change: they keep a full buffer, and a new one is started."""
        if not len(self._buffer):  # the first poll: same as a full buffer
            self._buffer = new[-self._most :]
            self._used = len(self._buffer)
            self.kept = self._buffer
            self.kept.flags.writeable = False
            self.newest = int(new["seq"][-1])
            return
        new = new[-self._most :]
        spare = self._most // 4 + len(new) if self._most > _FEW else 0
        if self._used + len(new) > len(self._buffer):
            kept = self.kept[max(0, len(self.kept) + len(new) - self._most) :]
            room = min(self._most + spare, 2 * (len(kept) + len(new)) + 64)
            self._buffer = np.empty(room, self._dtype)
            self._used = 0
            self._append(kept)
        self._append(new)
        self.kept = self._buffer[max(0, self._used - self._most) : self._used]
        self.kept.flags.writeable = False
        self.newest = int(new["seq"][-1])

    def _append(self, records: Array) -> None:
        """Appends as plain bytes: field by field would take twenty times as long."""
        kind, end = f"V{self._dtype.itemsize}", self._used + len(records)
        self._buffer.view(kind)[self._used : end] = records.view(kind)
        self._used = end

    def _count(self, cursor: int) -> None:
        """Counts the records that should exist. Everything below an earlier cursor was complete
        then; all but the last `capacity` records before the current cursor may be overwritten by
        now, and all but the last `_most` are not kept."""
        if not self._holds(self._counted + 1, cursor):
            now = word(read_at(self._fd, self._cursor_at, 8), 0)
            low = max(self._counted + 1, now + 2 - self._capacity, cursor + 1 - self._most)
            high = min(cursor, low + self._capacity - 1)
            if low <= high and not self._holds(low, high):
                seq = self.kept["seq"]
                first = np.searchsorted(seq, np.uint64(low), "left")
                last = np.searchsorted(seq, np.uint64(high), "right")
                self.lost += high - low + 1 - int(last - first)
        self._counted = cursor

    def _holds(self, low: int, high: int) -> bool:
        """Returns whether the last kept records are these, the usual case. (They are sorted and
        unique.)"""
        seq, many = self.kept["seq"], high - low + 1
        return many <= len(seq) and int(seq[-many]) == low and int(seq[-1]) == high
