"""Reads the history of a black box: the one of its two areas that is valid."""

from __future__ import annotations

import numpy as np
from mgpu_probes.inprocess import layout

from .boxheader import read_at, word
from .records import HISTORY_DTYPE, STEP_DTYPE, Array, sound, whole, windows

_ATTEMPTS = 4
_NONE: Array = np.empty(0, HISTORY_DTYPE)


class HistoryReader:
    """Reads the closed windows when there is a new one, the open window every time."""

    def __init__(self, fd: int, offset: int, capacity: int) -> None:
        self._fd = fd
        self._offset = offset
        self._capacity = capacity
        self._key = (2, 0, 0)
        self._open = b""
        self._closed = _NONE
        self._all = _NONE

    def poll(self) -> tuple[Array, int | None]:
        """The windows, oldest first, and the ns that one covers."""
        for _ in range(_ATTEMPTS):
            area, cursor, window = key = self._words()
            if area > 1 or cursor > self._capacity or not 0 < window < 1 << 62:
                return _NONE, None
            still_open = self._raw(area, cursor, min(cursor + 1, self._capacity))
            if (key, still_open) == (self._key, self._open):
                break
            if key != self._key:
                self._closed = _believed(self._raw(area, 0, cursor), 1)
            if self._words() == key:
                self._key, self._open = key, still_open
                self._all = _joined(self._closed, _believed(still_open, cursor + 1))
                break
        return self._all, window

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


def _joined(closed: Array, still_open: Array) -> Array:
    """Both after each other. (np.concatenate would pack the fields.)"""
    both: Array = np.empty(len(closed) + len(still_open), HISTORY_DTYPE)
    both[: len(closed)] = closed
    both[len(closed) :] = still_open
    return both
