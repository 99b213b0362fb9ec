"""One graph in braille, with its axis, figures and gaps. Pure.

A column is solid up to the mean, and sparse from there to the maximum. A column without samples is
blank; one that is zero is not.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.live.history_measures import Measure, Unit
from mgpu_doctor.live.history_series import LATE
from mgpu_doctor.live.history_spans import Columns, Floats, Spans, gaps
from mgpu_doctor.report.text import cut
from mgpu_doctor.tui.braille import DOTS, KIBI, Canvas, Levels, levels, nice
from mgpu_doctor.tui.panels.table_cells import DIM
from mgpu_doctor.tui.screens.graph_selection import Lane

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


GUTTER_GAP = 2
"""Cells between the gutter's words and the columns: the axis and a blank."""
TALL = 4
"""Lines from which a graph has a line of figures and an axis."""
QUARTERED = 9
"""Lines from which the axis has its quarters labelled."""
STYLE = "cyan"
PATIENCE = 3.0
"""Seconds that the newest sample may be old before it is missed, whatever its spacing."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """`columns`: two per cell; `axis`: its bottom and top; `window`: from when to when; `margin`:
    cells left of the columns; `why`: what to say where nothing is known of it at all."""

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

    @property
    def width(self) -> int:
        """Cells of the columns."""
        return len(self.columns.mean) // 2

    def write(self, value: float) -> str:
        return self.lane.measure.unit.write(value)

    def heights(self, values: Floats, height: int) -> Levels:
        """Returns these values in dots of `height` lines."""
        bottom, top = self.axis
        return levels(((values - bottom) / ((top - bottom) or 1.0)).tolist(), DOTS * height)

    def newest(self, missed: Missing) -> str:
        """Returns the latest value; unknown if nothing is measured at the end of the window."""
        return UNKNOWN if self.is_empty or missed.ongoing else self.write(_newest(self))

    def why_empty(self) -> str:
        """Returns what to say instead of a graph without columns."""
        return "no samples in this window" if len(self.spans) else self.why


def drawn(graph: Graph, height: int) -> list[Text]:
    """The graph in `height` lines."""
    missed = missing(graph)
    newest = graph.newest(missed)
    if height < TALL:
        return _with_gutter(graph, [_gutter(graph.lane.title, newest, graph.margin)], height)
    gutter = axis_labels(graph, height - 1)
    return [_head(graph, newest, missed.label), *_with_gutter(graph, gutter, height - 1)]


def axis_labels(graph: Graph, height: int) -> list[Text]:
    """Returns what is left of the columns, for each line: top, bottom and where there is room the
    quarters between, with their unit."""
    bottom, top = graph.axis
    parts = 4 if height >= QUARTERED else 1
    values = {
        round((height - 1) * part / parts): top - (top - bottom) * part / parts
        for part in range(parts + 1)
    }
    return [
        _label(graph.write(values[line]) if line in values else "", graph.margin)
        for line in range(height)
    ]


def _head(graph: Graph, newest: str, missed: str) -> Text:
    head = Text(graph.lane.title, style="bold")
    if not graph.is_empty:
        head.append(f"  {newest}", style=f"bold {STYLE}")
        head.append(f"  {figures(graph)}", style=DIM)
    if missed:
        head.append(f"  {missed}", style="yellow")
    head.truncate(graph.margin + graph.width, overflow="ellipsis")
    return head


def _with_gutter(graph: Graph, gutter: list[Text], height: int) -> list[Text]:
    if graph.is_empty:
        plot = [Text(cut(graph.why_empty(), graph.width), style=DIM)] + [Text()] * (height - 1)
    else:
        plot = area(graph, height)
    left = [*gutter, *[Text(" " * graph.margin)] * (height - len(gutter))]
    return [begin.copy().append_text(line) for begin, line in zip(left, plot, strict=True)]


def area(graph: Graph, height: int) -> list[Text]:
    """Returns the columns."""
    mean, high = (
        graph.heights(values, height) for values in (graph.columns.mean, graph.columns.high)
    )
    canvas = Canvas(graph.width, height)
    canvas.area(mean, STYLE, high)
    return canvas.lines()


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


def figures(graph: Graph) -> str:
    """Returns least, most and mean in the window, in words."""
    within = graph.spans.within(*graph.window)
    length = np.maximum(within.end - within.start, 1e-6)
    mean = float(np.average(within.mean, weights=length))
    low, high = float(within.low.min()), float(within.high.max())
    return f"{graph.write(low)} to {graph.write(high)}, mean {graph.write(mean)}"


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
