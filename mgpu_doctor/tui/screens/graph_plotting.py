"""One graph as lines of block characters, with its axis, figures and gaps. Pure.

A column is full up to the minimum, shaded up to the mean, and light up to the maximum. A column
without samples is blank; one that is zero is not.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.live.history_measures import Measure, Unit
from mgpu_doctor.live.history_series import LATE, Columns, Spans, gaps
from mgpu_doctor.report.text import cut
from mgpu_doctor.tui.panels.table_cells import DIM
from mgpu_doctor.tui.screens.graph_selection import Lane

NICE = tuple(
    step * power
    for power in (1.0, 10.0, 100.0)
    for step in (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
)
KIBI = 1024.0
TICKS = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
"""Seconds between clock times, the least that leaves room for their letters."""
TICK_ROOM = 12


def bounds(measure: Measure, drawn: list[Columns]) -> tuple[float, float]:
    """Returns bottom and top of the axis, the same for graphs shown together."""
    highs = [float(np.nanmax(columns.high)) for columns in drawn if np.isfinite(columns.high).any()]
    lows = [float(np.nanmin(point.low)) for point in drawn if np.isfinite(point.low).any()]
    if not highs:
        return 0.0, measure.top or 1.0
    high, low = max(highs), min(lows)
    if measure.top is not None:
        return 0.0, max(measure.top, high)
    if measure.rooted:
        return 0.0, nice(high, KIBI if measure.unit is Unit.RATE else 1000.0)
    margin = 0.05 * (high - low) or abs(high) or 1.0
    return low - margin, high + margin


def nice(value: float, base: float = 1000.0) -> float:
    """Returns the next round number; 1 for 0."""
    if not value > 0:
        return 1.0
    scale = base ** math.floor(math.log(value, base))
    return next((scale * step for step in NICE if scale * step >= value), scale * base)


def clock(start: float, stop: float, width: int, margin: int) -> Text:
    """Local times under the columns, after `margin` cells."""
    length = stop - start
    every = next((t for t in TICKS if t * width / length >= TICK_ROOM), TICKS[-1])
    seconds = every % 60 != 0
    shown = [" "] * (margin + width)
    zone = time.localtime(start).tm_gmtoff
    at = math.ceil((start + zone) / every) * every - zone
    while at <= stop:
        moment = time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))
        place = margin + int((at - start) / length * width)
        if place + 1 + len(moment) <= len(shown):
            shown[place : place + 1 + len(moment)] = f"╵{moment}"
        at += every
    return Text("".join(shown), style=DIM)


EIGHTHS = " ▁▂▃▄▅▆▇█"
FULL, SHADED, LIGHT = "█", "▓", "░"
SOLID, PALE = "cyan", "dim cyan"
PART = 8


def bars(columns: Columns, bottom: float, top: float, height: int) -> list[Text]:
    """Returns the lines, top first."""
    low, mean, high = (
        _eighths(value, bottom, top, height) for value in (columns.low, columns.mean, columns.high)
    )
    known = np.isfinite(columns.mean)
    mean = np.where(known, np.maximum(mean, 1), 0)
    return [_line(low, mean, np.where(known, high, 0), row) for row in reversed(range(height))]


def _eighths(
    value: npt.NDArray[np.float64], bottom: float, top: float, height: int
) -> npt.NDArray[np.int64]:
    share = np.nan_to_num((value - bottom) / ((top - bottom) or 1.0))
    return np.rint(np.clip(share, 0.0, 1.0) * PART * height).astype(np.int64)


def _line(
    low: npt.NDArray[np.int64],
    mean: npt.NDArray[np.int64],
    high: npt.NDArray[np.int64],
    row: int,
) -> Text:
    floor = PART * row
    cells = [
        _cell(*levels)
        for levels in zip(
            (low - floor).tolist(), (mean - floor).tolist(), (high - floor).tolist(), strict=True
        )
    ]
    line = Text()
    for style, run in groupby(cells, key=lambda cell: cell[1]):
        line.append("".join(glyph for glyph, _ in run), style=style)
    return line


def _cell(low: int, mean: int, high: int) -> tuple[str, str]:
    """Levels in eighths above the cell's floor."""
    if mean >= PART:
        return (FULL, SOLID) if low >= PART or low >= mean - 1 else (SHADED, SOLID)
    if mean > 0 and not (high >= PART and mean < PART // 2):
        return EIGHTHS[mean], SOLID
    return (LIGHT, PALE) if high >= PART // 2 else (EIGHTHS[max(0, mean)], SOLID)


GUTTER_GAP = 2
"""Cells between the gutter's words and the columns: the axis and a blank."""
TALL = 4
"""Lines from which a graph has a line of figures and an axis."""
PATIENCE = 3.0
"""Seconds that the newest sample may be old before it is missed, whatever its spacing."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """`axis`: its bottom and top; `window`: from when to when; `margin`: cells left of the columns;
    `why`: what to say where nothing is known of it at all."""

    lane: Lane
    spans: Spans
    columns: Columns
    axis: tuple[float, float]
    window: tuple[float, float]
    margin: int
    why: str

    @property
    def is_empty(self) -> bool:
        return not bool(np.isfinite(self.columns.mean).any())

    def write(self, value: float) -> str:
        return self.lane.measure.unit.write(value)


def drawn(graph: Graph, height: int) -> list[Text]:
    """The graph in `height` lines."""
    missed = missing(graph)
    newest = UNKNOWN if graph.is_empty or missed.ongoing else graph.write(_newest(graph))
    if height < TALL:
        return _with_gutter(graph, [_gutter(graph.lane.title, newest, graph.margin)], height)
    bottom, top = (_label(graph.write(end), graph.margin) for end in graph.axis)
    gutter = [top, *[_label("", graph.margin)] * (height - 3), bottom]
    return [_head(graph, newest, missed.label), *_with_gutter(graph, gutter, height - 1)]


def _head(graph: Graph, newest: str, missed: str) -> Text:
    head = Text(graph.lane.title, style="bold")
    if not graph.is_empty:
        low, mean, high = _figures(graph)
        head.append(f"  {newest}", style="bold cyan")
        head.append(f"  {low} to {high}, mean {mean}", style=DIM)
    if missed:
        head.append(f"  {missed}", style="yellow")
    head.truncate(graph.margin + len(graph.columns.mean), overflow="ellipsis")
    return head


def _with_gutter(graph: Graph, gutter: list[Text], height: int) -> list[Text]:
    if graph.is_empty:
        shown = "no samples in this window" if len(graph.spans) else graph.why
        plot = [Text(cut(shown, len(graph.columns.mean)), style=DIM)] + [Text()] * (height - 1)
    else:
        plot = bars(graph.columns, *graph.axis, height)
    left = [*gutter, *[Text(" " * graph.margin)] * (height - len(gutter))]
    return [begin.copy().append_text(line) for begin, line in zip(left, plot, strict=True)]


def _gutter(title: str, newest: str, margin: int) -> Text:
    room = max(0, margin - GUTTER_GAP)
    name = cut(title, max(0, room - len(newest) - 1))
    shown = f"{name}{newest:>{max(0, room - len(name))}}"[:room]
    return Text.assemble((shown[: len(name)], ""), (shown[len(name) :], "cyan"), " " * GUTTER_GAP)


def _label(shown: str, margin: int) -> Text:
    return Text(f"{shown:>{max(0, margin - GUTTER_GAP)}}"[: max(0, margin - 2)] + "┤ ", style=DIM)


def _newest(graph: Graph) -> float:
    known = graph.columns.mean[np.isfinite(graph.columns.mean)]
    within = graph.spans.within(*graph.window)
    return float(within.mean[-1]) if len(within) else float(known[-1])


def _figures(graph: Graph) -> tuple[str, str, str]:
    within = graph.spans.within(*graph.window)
    length = np.maximum(within.end - within.start, 1e-6)
    mean = float(np.average(within.mean, weights=length))
    return (
        graph.write(float(within.low.min())),
        graph.write(mean),
        graph.write(float(within.high.max())),
    )


@dataclass(frozen=True, slots=True)
class Missing:
    """`label`: when nothing was measured, in words, empty where nothing is missing; `ongoing`:
    nothing is measured at the end of the window."""

    label: str = ""
    ongoing: bool = False


def missing(graph: Graph) -> Missing:
    """Returns what is missing in the window, and since when."""
    start, stop = graph.window
    column = (stop - start) / max(1, len(graph.columns.mean))
    bounds = gaps(graph.spans, start, stop, column)
    if not bounds:
        return Missing()
    last = graph.spans.end[-1] - graph.spans.start[-1]
    least = max(column, PATIENCE, LATE * float(last))
    ongoing = bounds[-1][1] >= stop
    if ongoing and graph.spans.end[-1] <= bounds[-1][0] and stop - bounds[-1][0] < least:
        bounds, ongoing = bounds[:-1], False
    if not bounds:
        return Missing()
    gone, back = bounds[-1]
    more = f" and {len(bounds) - 1} more" if len(bounds) > 1 else ""
    shown = f"since {_time(gone)}" if ongoing else f"{_time(gone)} to {_time(back)}"
    return Missing(f"no samples {shown}{more}", ongoing)


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
