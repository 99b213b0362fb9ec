"""Reads the history of a black box from the valid one of its two areas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mgpu_probes.inprocess import layout

from .boxheader import read_at, word
from .records import HISTORY_DTYPE, STEP_DTYPE, Array, join_records, sound, whole, windows

_ATTEMPTS = 4
_NEVER_READ = (2, 0, 0)
_WORDS_END = layout.HISTORY_WINDOW[1] + 8
_NONE: Array = np.empty(0, HISTORY_DTYPE)


class HistoryReader:
    """Reads windows closed since the last poll, and the open one every time."""

    def __init__(
        self, fd: int, offset: int, capacity: int, clean: Callable[[Array], Array]
    ) -> None:
        self._fd = fd
        self._offset = offset
        self._capacity = capacity
        self._clean = clean
        self._key = _NEVER_READ
        self._open = b""
        self._closed = _NONE
        self._all = _NONE

    def poll(self, header: bytes) -> tuple[Array, int | None]:
        """Returns the windows, oldest first, and the ns that one covers."""
        area, cursor, window = key = _words(header)
        for _ in range(_ATTEMPTS):
            if area > 1 or cursor > self._capacity or not 0 < window < 1 << 62:
                return _NONE, None
            known = self._known(*key)
            raw = self._raw(area, known, min(cursor + 1, self._capacity))
            if (key, raw) == (self._key, self._open):
                break
            now = _words(read_at(self._fd, 0, _WORDS_END))
            if now == key:
                self._add(key, known, raw)
                break
            area, cursor, window = key = now
        return self._all, window

    def _known(self, area: int, cursor: int, window: int) -> int:
        """Returns how many closed windows need not be read again: they never change while the area
        is valid."""
        served, known, covered = self._key
        return known if (area, window) == (served, covered) and cursor >= known else 0

    def _add(self, key: tuple[int, int, int], known: int, raw: bytes) -> None:
        """Adds windows. `raw`: those after the first `known`; the last one is still open."""
        _, cursor, _ = key
        values = self._clean(_believed(raw, known + 1))
        self._all = join_records([self._closed, values], HISTORY_DTYPE) if known else values
        self._open = raw[(cursor - known) * layout.STEP_SIZE :]
        last_is_open = len(self._all) and int(self._all["seq"][-1]) > cursor
        self._closed = self._all[:-1] if last_is_open else self._all
        self._key = key

    def _raw(self, area: int, first: int, end: int) -> bytes:
        size = layout.STEP_SIZE
        at = self._offset + (area * self._capacity + first) * size
        return read_at(self._fd, at, (end - first) * size)


def _words(header: bytes) -> tuple[int, int, int]:
    """Returns which area is valid, how many windows in it are closed, and the ns that one
    covers."""
    if len(header) < _WORDS_END:
        return _NEVER_READ
    area = min(word(header, layout.HISTORY_ACTIVE), 2)
    at = area % 2
    return area, word(header, layout.HISTORY_CURSOR[at]), word(header, layout.HISTORY_WINDOW[at])


def _believed(raw: bytes, first: int) -> Array:
    """Returns the complete records in `raw`, which should be numbered from `first` on."""
    seq = whole(raw, STEP_DTYPE)["seq"]
    own = np.flatnonzero(seq == np.arange(first, first + len(seq), dtype=np.uint64))
    return windows(raw, sound(raw, STEP_DTYPE, own))
