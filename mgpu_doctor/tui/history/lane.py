"""One graph as lines: its name, its figures, its columns, and what is missing in it. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from mgpu_doctor.live.history.series import LATE
from mgpu_doctor.live.history.spans import Columns, Spans, gaps
from mgpu_doctor.report.text import UNKNOWN, cut
from mgpu_doctor.tui.history.plot import bars
from mgpu_doctor.tui.history.subjects import Lane
from mgpu_doctor.tui.panels.parts import DIM

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
    """So many lines."""
    missed = missing(graph)
    newest = UNKNOWN if graph.is_empty or missed.ongoing else graph.write(_newest(graph))
    if height < TALL:
        return _with_gutter(graph, [_gutter(graph.lane.title, newest, graph.margin)], height)
    bottom, top = (_label(graph.write(end), graph.margin) for end in graph.axis)
    gutter = [top, *[_label("", graph.margin)] * (height - 3), bottom]
    return [_head(graph, newest, missed.told), *_with_gutter(graph, gutter, height - 1)]


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
        said = "no samples in this time" if len(graph.spans) else graph.why
        plot = [Text(cut(said, len(graph.columns.mean)), style=DIM)] + [Text()] * (height - 1)
    else:
        plot = bars(graph.columns, *graph.axis, height)
    left = [*gutter, *[Text(" " * graph.margin)] * (height - len(gutter))]
    return [begin.copy().append_text(line) for begin, line in zip(left, plot, strict=True)]


def _gutter(title: str, newest: str, margin: int) -> Text:
    room = max(0, margin - GUTTER_GAP)
    name = cut(title, max(0, room - len(newest) - 1))
    told = f"{name}{newest:>{max(0, room - len(name))}}"[:room]
    return Text.assemble((told[: len(name)], ""), (told[len(name) :], "cyan"), " " * GUTTER_GAP)


def _label(told: str, margin: int) -> Text:
    return Text(f"{told:>{max(0, margin - GUTTER_GAP)}}"[: max(0, margin - 2)] + "┤ ", style=DIM)


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
    """`told`: when nothing was measured, in words, empty where nothing is missing; `ongoing`:
    nothing is measured at the end of the window."""

    told: str = ""
    ongoing: bool = False


def missing(graph: Graph) -> Missing:
    """What is missing in the window, and since when."""
    start, stop = graph.window
    column = (stop - start) / max(1, len(graph.columns.mean))
    found = gaps(graph.spans, start, stop, column)
    if not found:
        return Missing()
    last = graph.spans.end[-1] - graph.spans.start[-1]
    least = max(column, PATIENCE, LATE * float(last))
    ongoing = found[-1][1] >= stop
    if ongoing and graph.spans.end[-1] <= found[-1][0] and stop - found[-1][0] < least:
        found, ongoing = found[:-1], False
    if not found:
        return Missing()
    gone, back = found[-1]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    told = f"since {_time(gone)}" if ongoing else f"{_time(gone)} to {_time(back)}"
    return Missing(f"no samples {told}{more}", ongoing)


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
