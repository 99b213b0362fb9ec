"""Reads the history of a black box: the one of its two areas that is valid."""

from __future__ import annotations

import numpy as np
from mgpu_probes.inprocess import layout

from .boxheader import read_at, word
from .records import STEP_DTYPE, Array, history, plausible, sound, whole

_ATTEMPTS = 4
_NONE = history(np.empty(0, STEP_DTYPE))


class HistoryReader:
    """The closed windows are read when there is a new one, the open window every time."""

    def __init__(self, fd: int, offset: int, capacity: int) -> None:
        self._fd = fd
        self._offset = offset
        self._capacity = capacity
        self._key = (-1, -1, 0)
        self._closed = _NONE

    def poll(self) -> tuple[Array, int | None]:
        """The windows, oldest first, and the ns that one covers."""
        for _ in range(_ATTEMPTS):
            area, cursor, window = key = self._words()
            if area > 1 or cursor > self._capacity or not 0 < window < 1 << 62:
                return _NONE, None
            if key != self._key:
                self._closed = self._read(area, 0, cursor)
            still_open = self._read(area, cursor, min(cursor + 1, self._capacity))
            if self._words() == key:
                self._key = key
                break
        if not len(still_open):
            return self._closed, window
        return np.concatenate([self._closed, still_open]), window

    def _words(self) -> tuple[int, int, int]:
        first = layout.HISTORY_ACTIVE
        raw = read_at(self._fd, first, layout.HISTORY_WINDOW[1] + 8 - first)
        if len(raw) < layout.HISTORY_WINDOW[1] + 8 - first:
            return 2, 0, 0
        area = min(word(raw, 0), 2)
        at = area % 2
        cursor = word(raw, layout.HISTORY_CURSOR[at] - first)
        return area, cursor, word(raw, layout.HISTORY_WINDOW[at] - first)

    def _read(self, area: int, first: int, end: int) -> Array:
        size = STEP_DTYPE.itemsize
        at = self._offset + (area * self._capacity + first) * size
        raw = read_at(self._fd, at, (end - first) * size)
        seq = whole(raw, STEP_DTYPE)["seq"]
        own = np.flatnonzero(seq == first + 1 + np.arange(len(seq), dtype=np.uint64))
        return history(plausible(sound(raw, STEP_DTYPE, own)))
