"""The last minutes of this machine in braille: GPUs, cores, memory, disks and network. Pure.

A column without samples is blank; one that is zero has its lowest dot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from mgpu_doctor.formatting import UNKNOWN, format_bytes, format_seconds
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.braille import DOTS, KIBI, area_rows, levels, nice
from mgpu_doctor.tui.panels.table_cells import DIM, FULLEST, HIGH, assemble, join_parts
from mgpu_doctor.tui.view import View

HEIGHT, LOW = 4, 2
"""Lines of a graph below its title: usually, and where there are few."""
GAP = 2
"""Cells between two graphs."""
SCALE = 7
"""Cells of the axis: `100 %`, `1.5 MiB`."""
NARROWEST = 22
"""Cells that a graph has at least; where there is less room, graphs are below each other."""
BESIDE = (6, 4, 3, 2, 1)
"""Graphs next to each other."""
MOST_BESIDE = 3
"""Of them, while no job is shown: the wider, the longer they reach back."""
LEAST_TOP = 1024.0
"""Bytes per second at the top of an axis, at least: less is noise."""


class Plot(NamedTuple):
    """A graph of the sum of some measures."""

    title: str
    style: str
    measures: tuple[str, ...]
    of_gpus: bool = False
    """Means over all GPUs; else of the host."""
    is_share: bool = True
    """Shares of 0..1; else bytes per second."""
    alarms: bool = False
    """Whether much is bad, as of memory."""


GPU_PLOTS = (
    Plot("GPU utilization", "green", ("utilization",), of_gpus=True),
    Plot("GPU memory", "magenta", ("memory",), of_gpus=True, alarms=True),
)
HOST_PLOTS = (
    Plot("cpu", "cyan", ("cpu",)),
    Plot("memory", "blue", ("memory",), alarms=True),
    Plot("disk", "yellow", ("disk read", "disk written"), is_share=False),
    Plot("network", "magenta", ("network received", "network sent"), is_share=False),
)


def machine_lines(frame: Frame, width: int, _view: View, *, height: int = HEIGHT) -> Sequence[Text]:
    """Returns the graphs; empty while a job is shown, or before there are two samples."""
    return _graph_lines(frame, width, height, MOST_BESIDE) if frame.diagnosis is None else []


def job_machine_lines(
    frame: Frame, width: int, _view: View, *, height: int = HEIGHT
) -> Sequence[Text]:
    """Returns the graphs while a job of this machine alone is shown."""
    of_job = frame.diagnosis is not None and len(frame.hosts) <= 1
    return _graph_lines(frame, width, height, max(BESIDE)) if of_job else []


def _graph_lines(frame: Frame, width: int, height: int, most: int) -> Sequence[Text]:
    if frame.history is None or frame.replay is not None:
        return []
    with_gpus = frame.devices is not None and bool(frame.devices.devices)
    plots = [*(GPU_PLOTS if with_gpus else ()), *HOST_PLOTS]
    fitting = (n for n in BESIDE if n <= most and _room(width, n) >= NARROWEST)
    beside = next((n for n in fitting if len(plots) % n == 0), 1)
    room = max(1, _room(width, beside))
    seconds = 2 * room * max(1.0, frame.interval)
    values = _read(frame, plots, 2 * room, seconds)
    ago = format_seconds(round(seconds))
    drawn = [_draw(plot, read, room, height, ago) for plot, read in zip(plots, values, strict=True)]
    return [
        join_parts(row, GAP)
        for first in range(0, len(plots), beside)
        for row in zip(*drawn[first : first + beside], strict=True)
    ]


def _room(width: int, beside: int) -> int:
    return (width - GAP * (beside - 1)) // beside - SCALE - 1


def _read(frame: Frame, plots: Sequence[Plot], columns: int, seconds: float) -> list[list[float]]:
    """Returns the values of each graph, in columns of the last `seconds`, oldest first; NaN: not
    sampled."""
    from mgpu_doctor.live.history_collector import HostPast
    from mgpu_doctor.live.history_measures import OF_ALL_DEVICES, OF_COUNTERS, OF_HOST
    from mgpu_doctor.live.history_series import EMPTY, mean_columns

    history = frame.history
    assert history is not None
    host = frame.devices.host if frame.devices is not None else None
    past = next(iter(history.hosts.values()), HostPast())
    sources = (
        (True, history.means.get(host, EMPTY), OF_ALL_DEVICES),
        (False, past.use, tuple(OF_HOST)),
        (False, past.counted, OF_COUNTERS),
    )
    start = frame.at - seconds
    read = {}
    for of_gpus, trace, measures in sources:
        names = {measure.name: place for place, measure in enumerate(measures)}
        wanted = [
            name
            for plot in plots
            for name in plot.measures
            if plot.of_gpus == of_gpus and name in names
        ]
        means = mean_columns(trace, [names[name] for name in wanted], start, frame.at, columns)
        read.update({(of_gpus, name): mean for name, mean in zip(wanted, means, strict=True)})
    return [
        [
            sum(parts)
            for parts in zip(*(read[plot.of_gpus, name] for name in plot.measures), strict=True)
        ]
        for plot in plots
    ]


def _draw(plot: Plot, values: Sequence[float], room: int, height: int, ago: str) -> list[Text]:
    """Returns a graph. `ago`: how far it reaches back, shown if there is room."""
    known = [value for value in values if not math.isnan(value)]
    newest, top = known[-1] if known else None, 1.0
    style = plot.style
    if not plot.is_share:
        top = nice(max(LEAST_TOP, *known), KIBI) if known else LEAST_TOP
    elif plot.alarms and newest is not None and newest >= HIGH:
        style = "red" if newest >= FULLEST else "yellow"
    shown = _write(plot, newest)
    left = SCALE - 1 + room - len(plot.title) - len(shown)
    past = ago if len(ago) < left else ""
    blank = " " * max(0, left - len(past))
    head = assemble((plot.title, "bold"), ("  ", ""), (shown, style), (blank, ""), (past, DIM))
    ends = ("100 %", "0 %") if plot.is_share else (format_bytes(int(top)), "0 B")
    scales = [ends[0], *[""] * (height - 2), ends[1]]
    rows = area_rows(levels([value / top for value in values], DOTS * height), height)
    return [
        head,
        *(
            assemble((f"{scale:>{SCALE}}{'┤' if scale else '│'}", DIM), (row, style))
            for scale, row in zip(scales, rows, strict=True)
        ),
    ]


def _write(plot: Plot, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{100 * value:.0f} %" if plot.is_share else f"{format_bytes(int(value))}/s"
