"""The heat-map: ranks by recent steps; a cell is the own work beyond the median rank's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.text import Text

from mgpu_doctor.findings import Finding
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.report.verdict import leading
from mgpu_doctor.tui.filter.shown import shown
from mgpu_doctor.tui.panels.parts import DIM
from mgpu_doctor.tui.panels.rows import Rows
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.live.heat import Heat

LEVELS = (
    (0.05, "·", DIM),
    (0.10, "▁", "cyan"),
    (0.25, "▃", "yellow"),
    (0.50, "▅", "dark_orange"),
    (1.00, "▆", "red"),
    (math.inf, "█", "bold red"),
)
"""Upper bound of the excess, what is drawn, its colour. The height says the same as the colour."""
UNKNOWN = " "


def lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    heat = frame.heat
    if heat is None:
        return []
    if isinstance(heat, str):
        return [Text(f"no map of ranks by steps: {text.line(heat)}", style=DIM)]
    label = max(4, len(str(max(heat.ranks))))
    columns = max(1, width - label - 1)
    steps = heat.steps[-columns:]
    first, last = int(steps[0]), int(steps[-1])
    told = f"{'':{label}} steps {first} to {last}; more own work than the median rank: "
    head = Text(told, style=DIM)
    for bound, glyph, style in LEVELS:
        above = "more" if math.isinf(bound) else f"{bound:.0%}"
        head.append(glyph, style=style).append(f" {above}  ", style=DIM)
    head.truncate(width, overflow="ellipsis")
    left = {rank.rank for rank in shown(frame, view.filter).ranks}
    rows = [row for row, rank in enumerate(heat.ranks) if view.filter is None or rank in left]

    def make(place: int) -> Text:
        return _row(heat, rows[place], columns, label)

    blamed = {culprit.rank for culprit in lead.culprits} if (lead := _leading(frame)) else set()
    marked = next((place for place, row in enumerate(rows) if heat.ranks[row] in blamed), None)
    return Rows([head], len(rows), make, marked)


def _leading(frame: Frame) -> Finding | None:
    return leading(frame.diagnosis) if frame.diagnosis else None


@lru_cache(128)
def _row(heat: Heat, row: int, columns: int, label: int) -> Text:
    """The newest steps, one a cell: steps are never joined, so that single spikes stay seen. A map
    is drawn many times."""
    drawn = Text(f"{heat.ranks[row]:{label}} ")
    glyphs = [_level(value) for value in heat.excess[row, -columns:].tolist()]
    start = 0
    for end in range(1, len(glyphs) + 1):
        if end == len(glyphs) or glyphs[end] != glyphs[start]:
            glyph, style = glyphs[start]
            drawn.append(glyph * (end - start), style=style)
            start = end
    return drawn


def _level(value: float) -> tuple[str, str]:
    if math.isnan(value):
        return UNKNOWN, ""
    return next((glyph, style) for bound, glyph, style in LEVELS if value <= bound)
