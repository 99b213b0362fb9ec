"""The heat map of ranks by recent steps. Pure.

A cell is own work beyond the median of the other ranks. Rows follow the rank table; a row without
cells was not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.report import text
from mgpu_doctor.tui.filter.matching import kept_by
from mgpu_doctor.tui.panels.rank_table import blamed_ranks, listed_ranks, made_of
from mgpu_doctor.tui.panels.table_cells import DIM, Rows, sentence
from mgpu_doctor.tui.view import View

if TYPE_CHECKING:
    from mgpu_doctor.live.step_heatmap import Heatmap

LEVELS = (
    (0.05, "·", DIM),
    (0.10, "▁", "cyan"),
    (0.25, "▃", "yellow"),
    (0.50, "▅", "dark_orange"),
    (1.00, "▆", "red"),
    (math.inf, "█", "bold red"),
)
"""Upper bound of the excess, the block drawn, its colour. Height and colour show the same value."""
UNKNOWN = " "


def _made_of(frame: Frame, width: int, view: View) -> tuple[object, ...]:
    return (frame.heat, *made_of(frame, width, view))


@kept_by(_made_of)
def heatmap_lines(frame: Frame, width: int, view: View) -> Sequence[Text]:
    heat = frame.heat
    if heat is None:
        return []
    if isinstance(heat, str):
        return sentence(f"no map of ranks by steps: {text.line(heat)}", width)
    label = max(4, len(str(max(heat.ranks))))
    columns = max(1, width - label - 1)
    steps = heat.steps[-columns:]
    first, last = int(steps[0]), int(steps[-1])
    head = _head(f"{'':{label}} steps {first} to {last}", width)
    row_of = {rank: row for row, rank in enumerate(heat.ranks)}
    ranks = [rank.rank for rank in listed_ranks(frame, view) if rank.rank is not None]
    chosen = None if view.rank is None else view.rank.rank

    def make(place: int) -> Text:
        rank = ranks[place]
        row = row_of.get(rank)
        made = Text(f"{rank:{label}} ") if row is None else _row(heat, row, columns, label)
        if rank == chosen:
            made = made.copy()
            made.stylize("reverse", 0, label)
        return made

    blamed = blamed_ranks(frame.diagnosis, view.finding) if frame.diagnosis else set()
    sought = {chosen} if chosen in ranks else blamed
    marked = next((place for place, rank in enumerate(ranks) if rank in sought), None)
    return Rows([head], len(ranks), make, marked)


def _head(steps: str, width: int) -> Text:
    """Returns the title line, with as much of the legend as fits."""
    levels = legend()
    head = Text(steps, style=DIM)
    for words in ("; own work beyond the others: ", "; beyond others: ", "  "):
        if len(steps) + len(words) + levels.cell_len <= width:
            return Text.assemble(head, (words, DIM), levels)
    head.truncate(width, overflow="ellipsis")
    return head


def legend() -> Text:
    """Returns the levels of excess, each with its glyph."""
    levels = Text()
    for bound, glyph, style in LEVELS:
        above = "more" if math.isinf(bound) else f"{bound:.0%}"
        levels.append(glyph, style=style).append(f" {above}  ", style=DIM)
    levels.rstrip()
    return levels


@lru_cache(128)
def _row(heat: Heatmap, row: int, columns: int, label: int) -> Text:
    """Returns one rank's newest steps, one per cell. Steps are never merged, so single spikes stay
    visible. Cached, because a map is drawn many times."""
    drawn = Text(f"{heat.ranks[row]:{label}} ")
    glyphs = [level(value) for value in heat.excess[row, -columns:].tolist()]
    start = 0
    for end in range(1, len(glyphs) + 1):
        if end == len(glyphs) or glyphs[end] != glyphs[start]:
            glyph, style = glyphs[start]
            drawn.append(glyph * (end - start), style=style)
            start = end
    return drawn


def level(value: float) -> tuple[str, str]:
    """Returns the glyph and the style of an excess."""
    if math.isnan(value):
        return UNKNOWN, ""
    return next((glyph, style) for bound, glyph, style in LEVELS if value <= bound)
