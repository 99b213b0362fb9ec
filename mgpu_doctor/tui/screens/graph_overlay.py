"""Several GPUs or ranks in one chart: a line each, told apart by colour and by a character that is
repeated along the line and stands in the legend. Pure.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from rich.text import Text

from mgpu_doctor.report.text import cut
from mgpu_doctor.tui.braille import DOTS, Canvas, Levels
from mgpu_doctor.tui.panels.table_cells import DIM
from mgpu_doctor.tui.screens.graph_plotting import STYLE, Graph, area, axis_labels, figures, missing

MOST = 8
"""Lines of one chart."""
COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "bright_red", "", "bright_cyan")
APART = 4
"""Cells between a line's character and that of the next line."""
GAP = 2
"""Cells between the chart and its legend."""
FIGURES = 36
"""Cells of least, most and mean in the legend."""
ROOMY = 75
"""Cells of the chart with which the legend has figures."""


def marks(numbers: Sequence[int]) -> list[str]:
    """Returns a character for each line: the last digit of its number, or letters if lines have
    the same."""
    digits = [str(number % 10) for number in numbers]
    return digits if len({*digits}) == len(digits) else [*string.ascii_lowercase[: len(digits)]]


def legend_width(titles: Sequence[str], value: int, width: int, least: int) -> int:
    """Returns the cells of the legend, with a gap before it. `value`: cells of a value; `width`:
    cells that the chart and its legend share, `least` of them for the chart."""
    names = GAP + 2 + max(map(len, titles), default=0) + 1 + value
    if width - names - 1 - FIGURES >= ROOMY:
        return names + 1 + FIGURES
    return names if width - names >= 2 * least else 0


def chart(graphs: Sequence[Graph], height: int, value: int, legend: int) -> list[Text]:
    """Returns the lines of the graphs, which share axis and window, with a legend right of them. A
    single one is an area."""
    first = graphs[0]
    alone = len(graphs) == 1
    characters = [""] if alone else marks([graph.lane.subject.number or 0 for graph in graphs])
    styles = (STYLE,) if alone else COLOURS
    rows = [
        _legend(graph, character, style, value, legend)
        for graph, character, style in zip(graphs, characters, styles, strict=False)
    ]
    rows += [Text()] * (height - len(rows))
    if all(graph.is_empty for graph in graphs):
        why = Text(cut(first.why_empty(), first.width), style=DIM)
        plot = [why, *(Text() for _ in range(height - 1))]
    else:
        plot = area(first, height) if alone else _plot(graphs, characters, height)
    lines = []
    for label, line, row in zip(axis_labels(first, height), plot, rows, strict=False):
        line.truncate(first.width, pad=True)
        lines.append(Text.assemble(label, line, row))
    return lines


def _plot(graphs: Sequence[Graph], characters: Sequence[str], height: int) -> list[Text]:
    canvas = Canvas(graphs[0].width, height)
    tops = [graph.heights(graph.columns.mean, height) for graph in graphs]
    for line, colour in zip(tops, COLOURS, strict=False):
        canvas.line(line, colour)
    period = APART * len(graphs)
    for place, (line, character) in enumerate(zip(tops, characters, strict=True)):
        for cell, top in _marked(line, canvas.width, place * APART, period):
            canvas.mark(cell, (top - 1) // DOTS, character, f"bold {COLOURS[place]}")
    return canvas.lines()


def _marked(line: Levels, width: int, offset: int, period: int) -> list[tuple[int, int]]:
    """Returns cells of a line, counted from the right, and its height there; one at least."""
    right = [2 * cell + 1 if line[2 * cell + 1] is not None else 2 * cell for cell in range(width)]
    known = [(cell, top) for cell, x in enumerate(right) if (top := line[x]) is not None]
    chosen = [pair for pair in known if (width - 1 - pair[0]) % period == offset]
    return chosen or known[-1 - offset % max(1, len(known)) :][:1]


def _legend(graph: Graph, character: str, style: str, value: int, width: int) -> Text:
    missed = missing(graph)
    with_figures = width > FIGURES + value
    names = width - (1 + FIGURES if with_figures else 0) - GAP - 2 - 1 - value
    row = Text.assemble(
        " " * GAP, (f"{character:<2}", f"bold {style}"), f"{graph.lane.title:<{max(0, names)}} "
    )
    row.append(f"{graph.newest(missed):>{value}}", style=style)
    if with_figures and missed.label:
        row.append(f" {missed.label}", style="yellow")
    elif with_figures and not graph.is_empty:
        row.append(f" {figures(graph)}", style=DIM)
    row.truncate(width, overflow="ellipsis")
    return row
