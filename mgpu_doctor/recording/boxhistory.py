"""Reads the history of a black box: the one of its two areas that is valid."""

from __future__ import annotations

import numpy as np
from mgpu_probes.inprocess import layout

from .boxheader import read_at, word
from .records import HISTORY_DTYPE, STEP_DTYPE, Array, sound, whole, windows

_ATTEMPTS = 4
_NEVER_READ = (2, 0, 0)
_NONE: Array = np.empty(0, HISTORY_DTYPE)
_BYTES = np.dtype(f"V{layout.STEP_SIZE}")


class HistoryReader:
    """Reads the closed windows when there is a new one, the open window every time."""

    def __init__(self, fd: int, offset: int, capacity: int) -> None:
        self._fd = fd
        self._offset = offset
        self._capacity = capacity
        self._key = _NEVER_READ
        self._open = b""
        self._closed = _NONE
        self._all = _NONE

    def poll(self) -> tuple[Array, int | None]:
        """The windows, oldest first, and the ns that one covers."""
        for _ in range(_ATTEMPTS):
            area, cursor, window = key = self._words()
            if area > 1 or cursor > self._capacity or not 0 < window < 1 << 62:
                return _NONE, None
            if self._key == _NEVER_READ:
                raw = self._raw(area, 0, min(cursor + 1, self._capacity))
                still_open = raw[cursor * layout.STEP_SIZE :]
                together = _believed(raw, 1)
                closed = together[together["seq"] <= cursor]
            else:
                still_open = self._raw(area, cursor, min(cursor + 1, self._capacity))
                if (key, still_open) == (self._key, self._open):
                    break
                closed = self._closed_until(*key)
                together = _joined(closed, _believed(still_open, cursor + 1))
            if self._words() == key:
                self._key, self._open, self._closed = key, still_open, closed
                self._all = together
                break
        return self._all, window

    def _closed_until(self, area: int, cursor: int, window: int) -> Array:
        """Those that were read before never change while the area serves."""
        known_area, known, known_window = self._key
        if (area, window) != (known_area, known_window) or cursor < known:
            return _believed(self._raw(area, 0, cursor), 1)
        if cursor == known:
            return self._closed
        return _joined(self._closed, _believed(self._raw(area, known, cursor), known + 1))

    def _words(self) -> tuple[int, int, int]:
        first = layout.HISTORY_ACTIVE
        raw = read_at(self._fd, first, layout.HISTORY_WINDOW[1] + 8 - first)
        if len(raw) < layout.HISTORY_WINDOW[1] + 8 - first:
            return 2, 0, 0
        area = min(word(raw, 0), 2)
        at = area % 2
        cursor = word(raw, layout.HISTORY_CURSOR[at] - first)
        return area, cursor, word(raw, layout.HISTORY_WINDOW[at] - first)

    def _raw(self, area: int, first: int, end: int) -> bytes:
        size = layout.STEP_SIZE
        at = self._offset + (area * self._capacity + first) * size
        return read_at(self._fd, at, (end - first) * size)


def _believed(raw: bytes, first: int) -> Array:
    """The whole records in `raw`, which should be numbered from `first` on."""
    seq = whole(raw, STEP_DTYPE)["seq"]
    own = np.flatnonzero(seq == np.uint64(first) + np.arange(len(seq), dtype=np.uint64))
    return windows(raw, sound(raw, STEP_DTYPE, own))


def _joined(before: Array, after: Array) -> Array:
    """Both after each other. (np.concatenate would pack the fields.)"""
    both = np.empty(len(before) + len(after), HISTORY_DTYPE)
    whole_records = both.view(_BYTES)  # field by field would take ten times as long
    whole_records[: len(before)] = before.view(_BYTES)
    whole_records[len(before) :] = after.view(_BYTES)
    return both
