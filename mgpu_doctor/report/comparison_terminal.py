"""A comparison for a terminal: which run is faster, the figures, where the time goes, the effect of
more ranks. Only `Text` objects are printed, never markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.report import comparison_text, phase_bars, text
from mgpu_doctor.report.console import collecting
from mgpu_doctor.report.phase_bars import bar
from mgpu_doctor.report.terminal import ASCII
from mgpu_doctor.report.verdict import MARKS, STYLES

NARROWEST, WIDEST = 40, 120
GAP = 2
LONGEST = 400


def render_comparison(
    compared: Comparison, *, width: int, colour: bool, unicode: bool = True
) -> str:
    """The text, ending in a newline; no line is wider than `width` (at least 40) cells."""
    width = max(NARROWEST, min(width, WIDEST))
    console, out = collecting(width, colour=colour)
    conclusion = comparison_text.headline(compared)
    mark, style = MARKS[conclusion.tone], STYLES[conclusion.tone]
    _item(console, Text(mark, style=style), conclusion.sentence, "bold")
    for name, facts in comparison_text.describe_runs(compared):
        _item(console, Text(f"  {name}"), facts, "dim")
    _lines(console, _table(comparison_text.columns(compared), width - 2))
    _lines(console, _spent(compared, width - 2))
    if len(compared.pairs) > 1:
        _sentences(console, map(comparison_text.describe_pair, compared.pairs))
    _sentences(console, comparison_text.gains(compared))
    _sentences(console, comparison_text.notes(compared), "dim")
    printed = re.sub(r"[ ]+$", "", out.getvalue(), flags=re.MULTILINE)
    return printed if unicode else _ascii(printed)


def _item(console: Console, label: Text, sentence: str, style: str) -> None:
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    grid.add_column(width=label.cell_len, overflow="fold")
    grid.add_column(ratio=1, overflow="fold")
    room = console.width - label.cell_len - 1
    grid.add_row(label, Text(text.cut_words(text.cut(sentence, LONGEST), room), style=style))
    console.print(grid)


def _lines(console: Console, lines: Iterable[Text]) -> None:
    console.print()
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2)))


def _sentences(console: Console, sentences: Iterable[str], style: str = "") -> None:
    for place, sentence in enumerate(sentences):
        if not place:
            console.print()
        _item(console, Text("  -", style="dim"), text.line(sentence), style)


def _table(columns: Sequence[comparison_text.Column], width: int) -> list[Text]:
    """Yields a header and a line per run, with the columns that fit."""
    fitting = list(columns)
    while sum(map(_size, fitting)) + GAP * (len(fitting) - 1) > width and len(fitting) > 1:
        fitting.remove(min(fitting, key=lambda column: column.needed))
    lines = [Text(_row([column.head for column in fitting], fitting), style="dim")]
    for cells in zip(*(column.cells for column in fitting), strict=True):
        lines.append(Text(_row(cells, fitting)))
    return lines


def _row(cells: Sequence[str], columns: Sequence[comparison_text.Column]) -> str:
    parts = []
    for cell, column in zip(cells, columns, strict=True):
        size = _size(column)
        parts.append(cell.rjust(size) if column.number else set_cell_size(cell, size))
    return (" " * GAP).join(parts)


def _size(column: comparison_text.Column) -> int:
    return max(cell_len(cell) for cell in (column.head, *column.cells))


def _spent(compared: Comparison, width: int) -> list[Text]:
    """Yields a bar of phases per run, all on one scale."""
    spent = comparison_text.time_spent(compared)
    columns = [
        comparison_text.Column("", tuple(run.letter for run in spent), 9, number=False),
        comparison_text.Column("waits", tuple(run.in_collectives for run in spent), 3),
        comparison_text.Column("memory", tuple(run.memory for run in spent), 2),
    ]
    room = width - sum(map(_size, columns)) - GAP * len(columns)
    scale = max(sum(run.phases.values()) for run in spent)
    head = Text(_row([column.head for column in columns], columns), style="dim")
    lines = [head.append(f"{' ' * GAP}where a step's time goes" if scale else "")]
    for run, cells in zip(spent, zip(*(c.cells for c in columns), strict=True), strict=True):
        line = Text(f"{_row(cells, columns)}{' ' * GAP}")
        line.append_text(bar(run.phases, scale, room))
        line.truncate(width)
        lines.append(line)
    used = [name for name in phase_bars.PHASE_STYLES if any(name in run.phases for run in spent)]
    legend = Text(
        "  ".join(f"{phase_bars.PHASE_STYLES[name].letter} {name}" for name in used), style="dim"
    )
    return [*lines, legend] if used else lines


def _ascii(printed: str) -> str:
    words_left = printed.translate(ASCII).replace("µ", "u").replace("±", "+-")
    return words_left.encode("ascii", "replace").decode("ascii")
