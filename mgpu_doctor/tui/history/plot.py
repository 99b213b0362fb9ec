"""A graph as lines of blocks: full up to the least, shaded up to the mean and lightly up to the
most. A column in which nothing was measured is blank, one that is zero is not. Pure."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import numpy.typing as npt
from rich.text import Text

from mgpu_doctor.live.history.spans import Columns

EIGHTHS = " ▁▂▃▄▅▆▇█"
FULL, SHADED, LIGHT = "█", "▓", "░"
SOLID, PALE = "cyan", "dim cyan"
PART = 8


def bars(columns: Columns, bottom: float, top: float, height: int) -> list[Text]:
    """So many lines, the upper one first."""
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
