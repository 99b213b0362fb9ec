"""What one measure was from when to when, and how that falls into the columns of a graph. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FUZZ = 1e-6
"""Of a column: what is shorter is rounding. Seconds since the epoch have some 0.2 µs of it."""
INSTANT = 1e-3
"""Of a column: so much of it a value counts for that has no duration."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Oldest first, without overlap. What lies between two of them was not measured.

    `start`, `end`: seconds since the epoch; `low`, `mean`, `high` of what was measured there."""

    start: Floats
    end: Floats
    low: Floats
    mean: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.end)

    def until(self, at: float) -> Spans:
        """Those that were over at a moment."""
        return self._part(slice(0, int(np.searchsorted(self.end, at, "right"))))

    def known(self) -> Spans:
        """Those whose value is known."""
        return self._part(np.isfinite(self.mean))

    def within(self, start: float, stop: float) -> Spans:
        """Those that reach into a time."""
        first = int(np.searchsorted(self.end, start, "left"))
        return self._part(slice(first, int(np.searchsorted(self.start, stop, "right"))))

    def _part(self, chosen: slice | npt.NDArray[np.bool_]) -> Spans:
        parts = (self.start, self.end, self.low, self.mean, self.high)
        return Spans(*(part[chosen] for part in parts))


NONE = Spans(*(np.empty(0),) * 5)


def values(start: Floats, end: Floats, value: Floats) -> Spans:
    """Spans of one value each. Where two overlap, the later one begins later."""
    begun = np.maximum(start, np.concatenate(([-np.inf], end[:-1]))) if len(end) else start
    return Spans(np.minimum(begun, end), end, value, value, value).known()


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Of each column; NaN: nothing was measured in it."""

    low: Floats
    mean: Floats
    """Over the time in which it was measured."""
    high: Floats


def columns(spans: Spans, start: float, stop: float, count: int) -> Columns:
    """The time from `start` to `stop` in `count` columns."""
    width = (stop - start) / count
    spans = spans.within(start, stop)
    end = (spans.end - start) / width
    begin = np.minimum((spans.start - start) / width, end - INSTANT)
    begin = np.maximum(begin, np.concatenate(([-np.inf], end[:-1]))) if len(end) else begin
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    first = np.clip(np.floor(begin + FUZZ), 0, count).astype(np.int64)
    last = np.clip(np.ceil(end - FUZZ), 0, count).astype(np.int64)
    many = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(spans)), many)
    place = first[owner] + np.arange(len(owner)) - (np.cumsum(many) - many)[owner]
    np.minimum.at(low, place, spans.low[owner])
    np.maximum.at(high, place, spans.high[owner])
    covered, total = _integrals(begin, end, spans.mean, count)
    there = (covered > FUZZ) & np.isfinite(low)
    mean = np.divide(total, covered, out=np.full(count, np.nan), where=there)
    low, high = np.where(there, low, np.nan), np.where(there, high, np.nan)
    return Columns(low, np.clip(mean, low, high), high)


def _integrals(begin: Floats, end: Floats, mean: Floats, count: int) -> tuple[Floats, Floats]:
    """Of each column: how much of it is covered, and the integral of the mean over that."""
    if not len(end):
        return np.zeros(count), np.zeros(count)
    edges = np.arange(count + 1, dtype=np.float64)
    turns = np.stack([begin, end], axis=1).ravel()
    length = end - begin

    def each(area: Floats) -> Floats:
        grown = np.concatenate(([0.0], np.cumsum(area)))
        steps = np.stack([grown[:-1], grown[1:]], axis=1).ravel()
        return np.diff(np.interp(edges, turns, steps))

    return each(length), each(length * mean)


def gaps(spans: Spans, start: float, stop: float, least: float) -> list[tuple[float, float]]:
    """Times between `start` and `stop` of `least` seconds or more without a measurement, after
    the first one ever."""
    if not len(spans):
        return []
    gone, back = spans.end, np.append(spans.start[1:], np.inf)
    shown_from, shown_to = np.maximum(gone, start), np.minimum(back, stop)
    found = (back - gone >= least) & (shown_to - shown_from >= least)
    return list(zip(shown_from[found].tolist(), shown_to[found].tolist(), strict=True))
