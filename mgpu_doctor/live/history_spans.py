"""Measured spans of time, and their values per column of a graph. Pure.

NumPy is imported only here and for the ranks: graphs need it, the idle screen does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mgpu_doctor.live.history_series import FUZZ, INSTANT, Trace

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Measured spans, oldest first, without overlap. The time between two spans was not measured.

    `start`, `end`: seconds since the epoch; `low`, `mean`, `high` of what was measured there."""

    start: Floats
    end: Floats
    low: Floats
    mean: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.end)

    def until(self, at: float) -> Spans:
        """Returns the spans that ended by a moment."""
        return self._part(slice(0, int(np.searchsorted(self.end, at, "right"))))

    def known(self) -> Spans:
        """Returns the spans with a known value."""
        return self._part(np.isfinite(self.mean))

    def within(self, start: float, stop: float) -> Spans:
        """Returns the spans that overlap a window."""
        first = int(np.searchsorted(self.end, start, "left"))
        return self._part(slice(first, int(np.searchsorted(self.start, stop, "right"))))

    def _part(self, chosen: slice | npt.NDArray[np.bool_]) -> Spans:
        parts = (self.start, self.end, self.low, self.mean, self.high)
        return Spans(*(part[chosen] for part in parts))


NONE = Spans(*(np.empty(0),) * 5)


def values(start: Floats, end: Floats, value: Floats) -> Spans:
    """Returns spans of one value each. If two overlap, the later one starts at the end of the
    earlier."""
    begun = np.maximum(start, np.concatenate(([-np.inf], end[:-1]))) if len(end) else start
    return Spans(np.minimum(begun, end), end, value, value, value).known()


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Values per column; NaN: nothing was measured in it."""

    low: Floats
    mean: Floats
    """Mean over the time in which it was measured."""
    high: Floats


def columns(spans: Spans, start: float, stop: float, count: int) -> Columns:
    """Returns the values from `start` to `stop` in `count` columns."""
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
    """Returns for each column the covered time and the integral of the mean over it."""
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
    """Returns the gaps between `start` and `stop` of at least `least` seconds without a
    measurement, after the first one ever."""
    if not len(spans):
        return []
    gone, back = spans.end, np.append(spans.start[1:], np.inf)
    shown_from, shown_to = np.maximum(gone, start), np.minimum(back, stop)
    lasting = (back - gone >= least) & (shown_to - shown_from >= least)
    return list(zip(shown_from[lasting].tolist(), shown_to[lasting].tolist(), strict=True))


def trace_spans(trace: Trace, measure: int) -> Spans:
    """Returns the spans of one measure of a series where it is known."""
    if not trace.blocks:
        return NONE
    start = np.concatenate([np.frombuffer(block.starts)[: block.rows] for block in trace.blocks])
    end = np.concatenate([np.frombuffer(block.ends)[: block.rows] for block in trace.blocks])
    held = [
        np.frombuffer(block.values, np.float32).reshape(-1, 3, block.measures)
        for block in trace.blocks
    ]
    rows = [
        values[: block.rows, :, measure] for block, values in zip(trace.blocks, held, strict=True)
    ]
    low, mean, high = np.concatenate(rows).T.astype(np.float64)
    return Spans(start, end, low, mean, high).known()
