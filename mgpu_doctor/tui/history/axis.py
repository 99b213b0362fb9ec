"""The ends of a graph's upright axis, and the clock times under it. Pure."""

from __future__ import annotations

import math
import time

import numpy as np
from rich.text import Text

from mgpu_doctor.live.history.measures import Measure, Unit
from mgpu_doctor.live.history.spans import Columns
from mgpu_doctor.tui.panels.parts import DIM

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
    """Bottom and top of the axis, the same for graphs that stand together."""
    highs = [float(np.nanmax(one.high)) for one in drawn if np.isfinite(one.high).any()]
    lows = [float(np.nanmin(one.low)) for one in drawn if np.isfinite(one.low).any()]
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
    """The next number that is easily read; 1 for nothing."""
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
        told = time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))
        place = margin + int((at - start) / length * width)
        if place + 1 + len(told) <= len(shown):
            shown[place : place + 1 + len(told)] = f"╵{told}"
        at += every
    return Text("".join(shown), style=DIM)
