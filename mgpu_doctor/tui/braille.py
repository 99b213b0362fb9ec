"""Graphs in braille: a cell holds two columns of four dots. Pure.

Areas are solid, or sparse where a value only sometimes reached; lines are connected from column to
column. A cell has one colour, that of what was drawn last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, zip_longest

from rich.text import Text

DOTS = 4
"""Dots of a cell, one above the other."""
SIDES = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a cell's dots, left and right, from the lowest up (Unicode, block 2800)."""
FILLED = tuple(tuple(sum(side[:dots]) for dots in range(DOTS + 1)) for side in SIDES)
"""Bits of a cell's lowest dots, by their number, left and right."""
CHARACTERS = (" ", *map(chr, range(0x2801, 0x2900)))
"""Bits of a cell -> its character."""
AREA = tuple(tuple(CHARACTERS[left | right] for right in FILLED[1]) for left in FILLED[0])
"""Characters of areas, by the dots on the left and on the right."""
SPARSE = 0x40 | 0x02 | 0x20 | 0x08
"""Every other dot."""

NICE = tuple(
    step * power
    for power in (1.0, 10.0, 100.0)
    for step in (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
)
KIBI = 1024.0

Levels = Sequence[int | None]
"""A height in dots for each column of dots; None: nothing is drawn there."""


def levels(shares: Sequence[float], dots: int) -> list[int | None]:
    """Returns shares of 0..1 as heights of 1 to `dots`; NaN (not measured) as None."""
    return [
        None if math.isnan(share) else dots if share >= 1.0 else max(1, round(share * dots))
        for share in shares
    ]


def nice(value: float, base: float = 1000.0) -> float:
    """Returns the next round number; 1 for 0."""
    if not value > 0:
        return 1.0
    scale = base ** math.floor(math.log(value, base))
    return next((scale * step for step in NICE if scale * step >= value), scale * base)


def area_rows(tops: Levels, height: int) -> list[str]:
    """Returns what is below `tops`, filled, the top row first. Empty cells are blanks."""
    dots = [top or 0 for top in tops]
    cells = list(zip_longest(dots[::2], dots[1::2], fillvalue=0))
    rows = []
    for floor in range(DOTS * (height - 1), -1, -DOTS):
        above = [max(0, min(DOTS, top - floor)) for top in range(DOTS * height + 1)]
        rows.append("".join([AREA[above[left]][above[right]] for left, right in cells]))
    return rows


class Canvas:
    """Lines of cells to draw on. Dots and rows are counted from the lowest."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._bits = [[0] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]
        self._glyphs: dict[tuple[int, int], str] = {}

    def area(self, tops: Levels, style: str, above: Levels | None = None) -> None:
        """Fills what is below `tops`, and sparsely from there to `above`."""
        for x, top in enumerate(tops):
            if top is not None:
                self._column(x, 0, top, style)
        for x, (top, most) in enumerate(zip(tops, above or (), strict=False)):
            if top is not None and most is not None:
                self._column(x, top, most, style, SPARSE)

    def line(self, tops: Levels, style: str) -> None:
        """Connects the highest dots. What was not measured interrupts the line."""
        before: int | None = None
        for x, top in enumerate(tops):
            if top is not None:
                if before is None or before == top:
                    bottom, end = top - 1, top
                else:
                    bottom, end = (before, top) if before < top else (top - 1, before - 1)
                self._column(x, bottom, end, style)
            before = top

    def mark(self, cell: int, row: int, glyph: str, style: str) -> None:
        """Writes a character over a cell."""
        self._glyphs[row, cell] = glyph
        self._styles[row][cell] = style

    def lines(self) -> list[Text]:
        """Returns what was drawn, the top first. Empty cells are blanks."""
        return [self._line(row) for row in reversed(range(self.height))]

    def _line(self, row: int) -> Text:
        cells = [CHARACTERS[bits] for bits in self._bits[row]]
        for (of, cell), glyph in self._glyphs.items():
            if of == row:
                cells[cell] = glyph
        line, drawn = Text("".join(cells)), 0
        for style, run in groupby(self._styles[row]):
            start, drawn = drawn, drawn + len(list(run))
            if style:
                line.stylize(style, start, drawn)
        return line

    def _column(self, x: int, bottom: int, top: int, style: str, mask: int = 0xFF) -> None:
        """Sets the dots from `bottom` to below `top` of a column of dots."""
        cell, filled = x // 2, FILLED[x % 2]
        for row in range(bottom // DOTS, min(-(-top // DOTS), self.height)):
            floor = row * DOTS
            below = filled[bottom - floor] if bottom > floor else 0
            self._bits[row][cell] |= mask & (filled[min(DOTS, top - floor)] - below)
            self._styles[row][cell] = style
