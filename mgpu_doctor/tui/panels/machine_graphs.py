"""The last minutes of this machine in braille, while no job is shown: GPUs, cores, memory, disks
and network. Pure.

A column without samples is blank; one that is zero has its lowest dot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN, format_bytes
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.braille import DOTS, KIBI, Canvas, levels, nice
from mgpu_doctor.tui.panels.table_cells import DIM, FULLEST, HIGH
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.live.history_measures import Measure
    from mgpu_doctor.live.history_series import Trace

HEIGHT = 4
"""Lines of a graph below its title."""
GAP = 2
"""Cells between two graphs."""
SCALE = 7
"""Cells of the axis: `100 %`, `1.5 MiB`."""
NARROWEST = 24
"""Cells that a graph has at least; where there is less room, graphs are below each other."""
BESIDE = (6, 3, 2, 1)
"""Graphs next to each other."""
LEAST_TOP = 1024.0
"""Bytes per second at the top of an axis, at least: less is noise."""


class Plot(NamedTuple):
    """A graph. `read`: its values from a frame, so many columns, oldest first; NaN: not sampled."""

    title: str
    style: str
    read: Callable[[Frame, int], Sequence[float]]
    is_share: bool = True
    """Shares of 0..1; else bytes per second."""
    alarms: bool = False
    """Whether much is bad, as of memory."""


def machine_lines(frame: Frame, width: int, _view: View) -> Sequence[Text]:
    """Returns the graphs; empty while a job is shown, or before there are two samples."""
    if frame.diagnosis is not None or frame.history is None or frame.replay is not None:
        return []
    with_gpus = frame.devices is not None and bool(frame.devices.devices)
    plots = [*(GPU_PLOTS if with_gpus else ()), *HOST_PLOTS]
    beside = next((n for n in BESIDE if len(plots) % n == 0 and _room(width, n) >= NARROWEST), 1)
    room = max(1, _room(width, beside))
    lines: list[Text] = []
    for first in range(0, len(plots), beside):
        drawn = [
            _draw(plot, plot.read(frame, 2 * room), room) for plot in plots[first : first + beside]
        ]
        lines += [Text(" " * GAP).join(row) for row in zip(*drawn, strict=True)]
    return lines


def _room(width: int, beside: int) -> int:
    return (width - GAP * (beside - 1)) // beside - SCALE - 1


Find = Callable[[Frame, str], "tuple[Trace, Sequence[Measure]]"]
"""Where a measure is: its series, and the measures in it."""


def _find_gpus(frame: Frame, _name: str) -> tuple[Trace, Sequence[Measure]]:
    from mgpu_doctor.live.history_measures import OF_ALL_DEVICES
    from mgpu_doctor.live.history_series import EMPTY

    assert frame.history is not None
    host = frame.devices.host if frame.devices is not None else None
    return frame.history.means.get(host, EMPTY), OF_ALL_DEVICES


def _find_host(frame: Frame, name: str) -> tuple[Trace, Sequence[Measure]]:
    from mgpu_doctor.live.history_collector import HostPast
    from mgpu_doctor.live.history_measures import OF_COUNTERS, OF_HOST

    assert frame.history is not None
    past = next(iter(frame.history.hosts.values()), HostPast())
    used = tuple(OF_HOST)
    is_used = name in (measure.name for measure in used)
    return (past.use, used) if is_used else (past.counted, OF_COUNTERS)


def _sum_of(find: Find, *names: str) -> Callable[[Frame, int], Sequence[float]]:
    """Returns how to read the sum of these measures in each column, a second or a frame each, until
    now."""

    def read(frame: Frame, columns: int) -> Sequence[float]:
        from mgpu_doctor.live.history_series import columns as divide

        start = frame.at - columns * max(1.0, frame.interval)
        values = []
        for name in names:
            trace, measures = find(frame, name)
            spans = trace.spans([measure.name for measure in measures].index(name), start)
            values.append(divide(spans, start, frame.at, columns).mean)
        total: list[float] = sum(values[1:], values[0]).tolist()
        return total

    return read


GPU_PLOTS = (
    Plot("GPU utilization", "green", _sum_of(_find_gpus, "utilization")),
    Plot("GPU memory", "magenta", _sum_of(_find_gpus, "memory"), alarms=True),
)
HOST_PLOTS = (
    Plot("cpu", "cyan", _sum_of(_find_host, "cpu")),
    Plot("memory", "blue", _sum_of(_find_host, "memory"), alarms=True),
    Plot("disk", "yellow", _sum_of(_find_host, "disk read", "disk written"), is_share=False),
    Plot(
        "network",
        "bright_red",
        _sum_of(_find_host, "network received", "network sent"),
        is_share=False,
    ),
)


def _draw(plot: Plot, values: Sequence[float], room: int) -> list[Text]:
    known = [value for value in values if not math.isnan(value)]
    newest, top = known[-1] if known else None, 1.0
    style = plot.style
    if not plot.is_share:
        top = nice(max(LEAST_TOP, *known), KIBI) if known else LEAST_TOP
    elif plot.alarms and newest is not None and newest >= HIGH:
        style = "red" if newest >= FULLEST else "yellow"
    head = Text.assemble((plot.title, "bold"), "  ", (_write(plot, newest), style))
    head.append(" " * max(0, SCALE + 1 + room - head.cell_len))
    ends = ("100 %", "0 %") if plot.is_share else (format_bytes(int(top)), "0 B")
    scales = [ends[0], *[""] * (HEIGHT - 2), ends[1]]
    canvas = Canvas(room, HEIGHT)
    canvas.area(levels([value / top for value in values], DOTS * HEIGHT), style)
    return [
        head,
        *(
            Text.assemble((f"{scale:>{SCALE}}", DIM), ("┤" if scale else "│", DIM), row)
            for scale, row in zip(scales, canvas.lines(), strict=True)
        ),
    ]


def _write(plot: Plot, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{100 * value:.0f} %" if plot.is_share else f"{format_bytes(int(value))}/s"
