"""Time series of one measure, and their values per column of a graph. Pure.

Memory is bounded: new samples are kept unchanged, older ones are merged into buckets of some
seconds with minimum, mean and maximum. Two samples are merged only if none was missed between them
and both have the same measures, so gaps and unknown values remain. If a device answers only
sometimes, the history is shorter, but never invented."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FUZZ = 1e-6
"""Share of a column below which a time is rounding error; about 0.2 µs for seconds since the
epoch."""
INSTANT = 1e-3
"""Share of a column that a value without duration counts for."""
ROWS = 64
"""Samples per block. A full block never changes, so views share it."""
BLOCKS = 8
"""Full blocks per level: 512 samples."""
WIDTHS = (8.0, 64.0)
"""Bucket width in seconds in the second and third level. One sample per second fills the levels in
9 minutes, 68 minutes and 9 hours."""
LATE = 2.5
"""A sample later than this many times the usual spacing leaves a gap."""
REMEMBERED = 9
"""Number of spacings whose median is the usual one."""
LONGEST = 60.0
"""Longest spacing in seconds without a gap while the usual one is unknown (between the first two
samples)."""
MOST = float(np.finfo(np.float32).max)

Times = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]


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


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """`times[row]`: start and end; `values[row]`: least, mean, most by measure; NaN: unknown."""

    times: Times
    values: Values


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The content of a series at one moment; cheap to take, never changes."""

    blocks: tuple[Block, ...]

    def spans(self, measure: int, since: float = -math.inf) -> Spans:
        """Returns the spans of one measure where it is known. `since`: earlier blocks are left out,
        in seconds since the epoch."""
        blocks = [block for block in self.blocks if block.times[-1, 1] >= since]
        if not blocks:
            return NONE
        times = np.concatenate([block.times for block in blocks])
        held = np.concatenate([block.values[:, :, measure] for block in blocks])
        low, mean, high = held.T.astype(np.float64)
        return Spans(times[:, 0], times[:, 1], low, mean, high).known()

    @property
    def first(self) -> float | None:
        """Returns the time of the oldest sample still kept."""
        return float(self.blocks[0].times[0, 0]) if self.blocks else None


EMPTY = Trace(())


def mean_columns(
    trace: Trace, measures: Sequence[int], start: float, stop: float, count: int
) -> Floats:
    """Returns the means from `start` to `stop` in `count` columns, a row per measure; NaN: nothing
    was measured in it. As `columns` of each measure, in one pass."""
    blocks = [block for block in trace.blocks if block.times[-1, 1] >= start]
    if not blocks:
        return np.full((len(measures), count), np.nan)
    width = (stop - start) / count
    times = (np.concatenate([block.times for block in blocks]) - start) / width
    value = np.concatenate([block.values[:, 1, measures] for block in blocks]).astype(np.float64)
    end = times[:, 1]
    begin = np.minimum(times[:, 0], end - INSTANT)
    begin[1:] = np.maximum(begin[1:], end[:-1])
    known = np.isfinite(value)
    areas = np.stack([known, np.where(known, value, 0.0)]) * (end - begin)[:, None]
    grown = np.zeros((2, len(end) + 1, len(measures)))
    np.cumsum(areas, axis=1, out=grown[:, 1:])
    edges = np.arange(count + 1, dtype=np.float64)
    place = np.searchsorted(end, edges, "right")  # how many spans have ended by then
    now = np.minimum(place, len(end) - 1)
    share = np.clip((edges - begin[now]) / (end - begin)[now], 0.0, 1.0) * (place < len(end))
    covered, total = np.diff(grown[:, place] + areas[:, now] * share[:, None], axis=1)
    there = covered > FUZZ
    means: Floats = np.divide(total, covered, out=np.full_like(total, np.nan), where=there).T
    return means


class Series:
    """A time series. `measures`: how many. `blocks`: full blocks per level (`math.inf`: nothing is
    ever merged)."""

    def __init__(self, measures: int, blocks: float = BLOCKS) -> None:
        self._shape = measures, blocks
        self._begin()

    def _begin(self) -> None:
        self._levels = [_Level(*self._shape) for _ in range(1 + len(WIDTHS))]
        self._spacings: deque[float] = deque(maxlen=REMEMBERED)
        self._last: float | None = None

    def append(self, at: float, values: Sequence[float | None], since: float | None = None) -> None:
        """Adds a sample. `since`: start of the time it covers; if unknown, it covers the time since
        the previous sample, if that was as recent as usual. Samples out of order are dropped; if
        the clock was set back, the series starts over."""
        if self._last is not None and at <= self._last:
            if self._last - at <= LONGEST:
                return
            self._begin()
        start = self._start(at) if since is None else max(since, self._last or since)
        self._last = at
        known = [math.nan if value is None or not abs(value) <= MOST else value for value in values]
        row = np.array([known] * 3, np.float32)
        self._put(0, np.array([start, at]), row)

    def trace(self) -> Trace:
        """Returns the current content."""
        return Trace(tuple(block for level in reversed(self._levels) for block in level.held()))

    def _start(self, at: float) -> float:
        if self._last is None:
            return at
        spacing = at - self._last
        usual = sorted(self._spacings)[len(self._spacings) // 2] if self._spacings else None
        self._spacings.append(spacing)
        if usual is None:
            return self._last if spacing <= LONGEST else at
        return self._last if spacing <= LATE * usual else at - usual

    def _put(self, number: int, times: Times, values: Values) -> None:
        pushed = self._levels[number].put(times, values)
        if pushed is not None and number < len(WIDTHS):
            for row in merged(pushed, WIDTHS[number]):
                self._put(number + 1, *row)


class _Level:
    """Blocks of one resolution, oldest first."""

    def __init__(self, measures: int, blocks: float) -> None:
        self._measures, self._most = measures, blocks
        self._full: tuple[Block, ...] = ()
        self._open: Block | None = None
        self._used = 0

    def put(self, times: Times, values: Values) -> Block | None:
        """Adds a row; returns the oldest block if it had to make room."""
        if self._open is None:
            self._open = Block(
                np.empty((ROWS, 2)), np.empty((ROWS, 3, self._measures), dtype=np.float32)
            )
        self._open.times[self._used] = times
        self._open.values[self._used] = values
        self._used += 1
        if self._used < ROWS:
            return None
        self._full, self._open, self._used = (*self._full, self._open), None, 0
        if len(self._full) <= self._most:
            return None
        oldest, *rest = self._full
        self._full = tuple(rest)
        return oldest

    def held(self) -> tuple[Block, ...]:
        if self._open is None:
            return self._full
        there = slice(0, self._used)
        return (*self._full, Block(self._open.times[there], self._open.values[there]))


def merged(block: Block, width: float) -> Iterable[tuple[Times, Values]]:
    """Returns a block's rows, with neighbours of the same kind joined up to `width` seconds."""
    times, values = block.times, block.values
    unknown = np.isnan(values[:, 1])
    starts = [0]
    for row in range(1, len(times)):
        touching = times[row, 0] == times[row - 1, 1]
        short = times[row, 1] - times[starts[-1], 0] <= width
        if not (touching and short and (unknown[row] == unknown[row - 1]).all()):
            starts.append(row)
    for first, end in zip(starts, [*starts[1:], len(times)], strict=True):
        rows = values[first:end]
        length = np.maximum(times[first:end, 1] - times[first:end, 0], 1e-6)
        low, high = rows[:, 0].min(axis=0), rows[:, 2].max(axis=0)
        mean = np.average(rows[:, 1].astype(np.float64), axis=0, weights=length)
        stack = np.stack([low, np.clip(mean.astype(np.float32), low, high), high])
        yield np.array([times[first, 0], times[end - 1, 1]]), stack
