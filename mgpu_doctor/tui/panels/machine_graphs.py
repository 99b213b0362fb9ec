"""The last minutes of this machine in braille, while no job is shown: GPUs, cores, memory. Pure.

A cell holds two columns of four dots. A column without samples is blank; one that is zero has its
lowest dot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.filter.matching import kept_by
from mgpu_doctor.tui.panels.table_cells import DIM, FULLEST, HIGH
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.live.history_collector import History
    from mgpu_doctor.live.history_measures import Measure
    from mgpu_doctor.live.history_series import Floats, Spans

HEIGHT = 4
"""Lines of a graph below its title."""
GAP = 2
"""Cells between two graphs."""
SCALE = 5
"""Cells of the axis: `100 %`, `  0 %`."""
NARROWEST = 24
"""Cells that a graph has at least; where there is less room, graphs are below each other."""
PLOT_COLOURS = {
    "GPU utilization": "green",
    "GPU memory": "magenta",
    "cpu": "cyan",
    "memory": "blue",
}
DOTS = 4
LEFT, RIGHT = (0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08)
"""Bits of a braille cell's dots, from the lowest up (Unicode, block 2800)."""
BLANK = 0x2800


class Plot(NamedTuple):
    """One graph. `shares`: two values per cell, 0..1, oldest first; NaN: not sampled."""

    title: str
    shares: Sequence[float]
    alarms: bool
    """Whether much is bad, as of memory."""


def machine_lines(frame: Frame, width: int, _view: View) -> Sequence[Text]:
    """Returns the graphs; empty while a job is shown, or before there are two samples."""
    if frame.diagnosis is not None or frame.history is None or frame.replay is not None:
        return []
    titles = _titles(frame)
    beside = next((n for n in (4, 2, 1) if n <= len(titles) and _room(width, n) >= NARROWEST), 1)
    room = max(1, _room(width, beside))
    plots = [
        Plot(title, _shares(frame, title, 2 * room), title.endswith("memory")) for title in titles
    ]
    lines: list[Text] = []
    for first in range(0, len(plots), beside):
        drawn = [_draw(plot, room) for plot in plots[first : first + beside]]
        lines += [Text(" " * GAP).join(row) for row in zip(*drawn, strict=True)]
    return lines


def _titles(frame: Frame) -> list[str]:
    with_gpus = frame.devices is not None and bool(frame.devices.devices)
    return list(PLOT_COLOURS) if with_gpus else ["cpu", "memory"]


def _room(width: int, beside: int) -> int:
    return (width - GAP * (beside - 1)) // beside - SCALE - 1


def _shares(frame: Frame, title: str, columns: int) -> Sequence[float]:
    from mgpu_doctor.live.history_measures import CPU, MEMORY, UTILIZATION

    if title.startswith("GPU"):
        return _of_gpus(frame, UTILIZATION if title == "GPU utilization" else MEMORY, columns)
    assert frame.history is not None
    measure = CPU if title == "cpu" else MEMORY
    return _means(frame, [_host_spans(frame.history, measure)], columns)


def _gpu_inputs(frame: Frame, measure: Measure, columns: int) -> tuple[object, ...]:
    return frame.devices, measure, columns, frame.history and len(frame.history.devices)


@kept_by(_gpu_inputs)
def _of_gpus(frame: Frame, measure: Measure, columns: int) -> Sequence[float]:
    """Returns the mean over the GPUs."""
    from mgpu_doctor.live.history_measures import OF_DEVICE

    assert frame.history is not None
    index = list(OF_DEVICE).index(measure)
    spans = [trace.spans(index) for trace in frame.history.devices.values()]
    return _means(frame, spans, columns)


def _host_spans(history: History, measure: Measure) -> Spans:
    from mgpu_doctor.live.history_measures import OF_HOST
    from mgpu_doctor.live.history_series import NONE

    index = list(OF_HOST).index(measure)
    return next((past.use.spans(index) for past in history.hosts.values()), NONE)


def _means(frame: Frame, spans: Sequence[Spans], columns: int) -> Sequence[float]:
    """Returns the mean of the spans in each column, a second or a frame each, until now."""
    import numpy as np

    from mgpu_doctor.live.history_series import columns as divide

    start = frame.at - columns * max(1.0, frame.interval)
    rows: list[Floats] = [divide(one, start, frame.at, columns).mean for one in spans]
    if not rows:
        return [float("nan")] * columns
    known = np.isfinite(np.stack(rows))
    total = np.where(known, rows, 0.0).sum(axis=0)
    counts = known.sum(axis=0)
    means = np.divide(total, counts, out=np.full(columns, np.nan), where=counts > 0)
    return [float(mean) for mean in means]


def _draw(plot: Plot, room: int) -> list[Text]:
    newest = next((share for share in reversed(plot.shares) if not math.isnan(share)), None)
    value = UNKNOWN if newest is None else f"{100 * newest:.0f} %"
    style = PLOT_COLOURS[plot.title]
    if plot.alarms and newest is not None and newest >= HIGH:
        style = "red" if newest >= FULLEST else "yellow"
    head = Text.assemble((plot.title, "bold"), "  ", (value, style))
    head.append(" " * max(0, SCALE + 1 + room - head.cell_len))
    scales = ["100 %", *[""] * (HEIGHT - 2), "0 %"]
    return [
        head,
        *(
            Text.assemble((f"{scale:>{SCALE}}", DIM), ("┤" if scale else "│", DIM), (row, style))
            for scale, row in zip(scales, braille(plot.shares, HEIGHT), strict=True)
        ),
    ]


def braille(shares: Sequence[float], height: int) -> list[str]:
    """Returns the area below shares of 0..1, two per cell, as `height` lines, top first."""
    levels = [
        0 if math.isnan(share) else max(1, round(min(1.0, max(0.0, share)) * DOTS * height))
        for share in shares
    ]
    if len(levels) % 2:
        levels.insert(0, 0)
    return [
        "".join(
            chr(BLANK + _bits(left - floor, LEFT) + _bits(right - floor, RIGHT))
            for left, right in zip(levels[::2], levels[1::2], strict=True)
        )
        for floor in range(DOTS * (height - 1), -1, -DOTS)
    ]


def _bits(level: int, dots: Sequence[int]) -> int:
    return sum(dots[: max(0, min(DOTS, level))])
