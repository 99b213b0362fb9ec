"""Time series of some measures, and their means per column of a graph. Pure, and without NumPy:
importing it takes a quarter of the idle screen's memory.

Memory is bounded: new samples are kept unchanged, older ones are merged into buckets of some
seconds with minimum, mean and maximum. Two samples are merged only if none was missed between them
and both have the same measures, so gaps and unknown values remain. If a device answers only
sometimes, the history is shorter, but never invented."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

FUZZ = 1e-6
"""Share of a column below which a time is rounding error; about 0.2 µs for seconds since the
epoch."""
INSTANT = 1e-3
"""Share of a column that a value without duration counts for."""
ROWS = 64
"""Samples per block. A full block never changes, so traces share it."""
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
MOST = (2.0 - 2.0**-23) * 2.0**127
"""The largest number of four bytes, as values are kept."""


class Row(NamedTuple):
    """What was measured from `start` to `end`: seconds since the epoch. `values`: the least of each
    measure, then the mean of each, then the most of each; NaN: unknown."""

    start: float
    end: float
    values: array[float]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The first `rows` rows of a block, oldest first. What comes after them may change. `values`:
    those of a row after those of the row before, see `Row`."""

    measures: int
    rows: int
    starts: array[float]
    ends: array[float]
    values: array[float]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The content of a series at one moment; cheap to take, never changes."""

    blocks: tuple[Block, ...]

    @property
    def first(self) -> float | None:
        """Returns the time of the oldest sample still kept."""
        return self.blocks[0].starts[0] if self.blocks else None


EMPTY = Trace(())


def mean_columns(
    trace: Trace, measures: Sequence[int], start: float, stop: float, count: int
) -> list[list[float]]:
    """Returns the means from `start` to `stop` in `count` columns, a list per measure; NaN: nothing
    was measured in it. As `history_spans.columns` of each measure, in one pass."""
    parts = list(_parts(trace, start, (stop - start) / count, count))
    return [_means(parts, measure, count) for measure in measures]


Part = tuple[int, float, Sequence[float]]
"""What a row says of a column: which one, the share of it, and the means of all measures."""


def _parts(trace: Trace, start: float, width: float, count: int) -> Iterable[Part]:
    """Yields the columns that each row covers."""
    before = 0.0
    for block in trace.blocks:
        ends, size = block.ends, 3 * block.measures
        for row in range(bisect_left(ends, start, 0, block.rows), block.rows):
            end = (ends[row] - start) / width
            begin = max(before, min((block.starts[row] - start) / width, end - INSTANT))
            before, stop = end, min(end, count)
            means = block.values[row * size + block.measures : (row + 1) * size - block.measures]
            while begin < stop:
                column = int(begin)
                edge = min(column + 1.0, stop)
                yield column, edge - begin, means
                begin = edge


def _means(parts: Iterable[Part], measure: int, count: int) -> list[float]:
    covered, total = [0.0] * count, [0.0] * count
    for column, share, means in parts:
        value = means[measure]
        if not math.isnan(value):
            covered[column] += share
            total[column] += share * value
    return [
        part / share if share > FUZZ else math.nan
        for part, share in zip(total, covered, strict=True)
    ]


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
        self._trace: Trace | None = None
        """The content, until there is another sample."""

    def append(self, at: float, values: Sequence[float | None], since: float | None = None) -> None:
        """Adds a sample. `since`: start of the time it covers; if unknown, it covers the time since
        the previous sample, if that was as recent as usual. Samples out of order are dropped; if
        the clock was set back, the series starts over."""
        if self._last is not None and at <= self._last:
            if self._last - at <= LONGEST:
                return
            self._begin()
        start = self._start(at) if since is None else max(since, self._last or since)
        self._last, self._trace = at, None
        known = [math.nan if value is None or not abs(value) <= MOST else value for value in values]
        self._put(0, Row(start, at, array("f", known * 3)))

    def trace(self) -> Trace:
        """Returns the current content."""
        if self._trace is None:
            held = (block for level in reversed(self._levels) for block in level.held())
            self._trace = Trace(tuple(held))
        return self._trace

    def _start(self, at: float) -> float:
        if self._last is None:
            return at
        spacing = at - self._last
        usual = sorted(self._spacings)[len(self._spacings) // 2] if self._spacings else None
        self._spacings.append(spacing)
        if usual is None:
            return self._last if spacing <= LONGEST else at
        return self._last if spacing <= LATE * usual else at - usual

    def _put(self, number: int, row: Row) -> None:
        pushed = self._levels[number].put(row)
        if pushed is not None and number < len(WIDTHS):
            for joined in merged(pushed, WIDTHS[number]):
                self._put(number + 1, joined)


class _Level:
    """Blocks of one resolution, oldest first."""

    def __init__(self, measures: int, blocks: float) -> None:
        self._measures, self._most = measures, blocks
        self._full: tuple[Block, ...] = ()
        self._open: Block | None = None
        self._used = 0

    def put(self, row: Row) -> Block | None:
        """Adds a row; returns the oldest block if it had to make room."""
        if self._open is None:
            self._open = Block(
                self._measures,
                ROWS,
                array("d", bytes(8 * ROWS)),
                array("d", bytes(8 * ROWS)),
                array("f", bytes(4 * ROWS * 3 * self._measures)),
            )
        size = 3 * self._measures
        self._open.starts[self._used], self._open.ends[self._used] = row.start, row.end
        self._open.values[self._used * size : (self._used + 1) * size] = row.values
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
        now = self._open
        there = Block(now.measures, self._used, now.starts, now.ends, now.values)
        return (*self._full, there)


def merged(block: Block, width: float) -> Iterable[Row]:
    """Returns a block's rows, with neighbours of the same kind joined up to `width` seconds."""
    starts, ends, measures = block.starts, block.ends, block.measures
    size = 3 * measures
    unknown = [
        list(map(math.isnan, block.values[row * size : row * size + measures]))
        for row in range(block.rows)
    ]
    begun = [0]
    for row in range(1, block.rows):
        touching = starts[row] == ends[row - 1]
        short = ends[row] - starts[begun[-1]] <= width
        if not (touching and short and unknown[row] == unknown[row - 1]):
            begun.append(row)
    for first, last in zip(begun, [*begun[1:], block.rows], strict=True):
        values = block.values[first * size : last * size]
        lengths = [max(ends[row] - starts[row], 1e-6) for row in range(first, last)]
        whole = sum(lengths)
        low = [min(values[measure::size]) for measure in range(measures)]
        high = [max(values[measure::size]) for measure in range(2 * measures, size)]
        mean = [
            sum(map(mul, lengths, values[measure::size])) / whole
            for measure in range(measures, 2 * measures)
        ]
        within = [min(max(m, a), b) for m, a, b in zip(mean, low, high, strict=True)]
        yield Row(starts[first], ends[last - 1], array("f", [*low, *within, *high]))
