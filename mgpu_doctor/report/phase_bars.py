"""Draws the phases of a step: a letter and a colour each, and a bar per rank on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mgpu_probes.inprocess.layout import PHASES
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from mgpu_doctor.findings import Diagnosis
from mgpu_doctor.formatting import UNKNOWN, format_seconds
from mgpu_doctor.report import text
from mgpu_doctor.report.device_timing import format_run_ahead
from mgpu_doctor.report.rank_rows import Row, rows


class PhaseStyle(NamedTuple):
    letter: str
    colour: str
    """Colours that colour-blind readers can distinguish (Okabe and Ito, 2008); greys for anything
    but work."""
    dark: bool = False
    """Whether text on it is light."""

    @property
    def letter_style(self) -> Style:
        """Returns the style of its letter: on its colour, as in a bar. As the colour of text, some
        are hardly visible on a light background."""
        return Style(color="#ffffff" if self.dark else "#000000", bgcolor=self.colour)


PHASE_STYLES: Mapping[str, PhaseStyle] = {
    "input": PhaseStyle("i", "#e69f00"),
    "transfer": PhaseStyle("t", "#cc79a7"),
    "forward": PhaseStyle("f", "#56b4e9"),
    "backward": PhaseStyle("b", "#0072b2", dark=True),
    "wait": PhaseStyle("·", "#c8c8c8"),
    "communication": PhaseStyle("c", "#d55e00", dark=True),
    "optimizer": PhaseStyle("o", "#009e73", dark=True),
    "checkpoint": PhaseStyle("k", "#f0e442"),
    "evaluation": PhaseStyle("e", "#8c6bb1", dark=True),
    "other": PhaseStyle("-", "#808080", dark=True),
}


def measured_phases(phases: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the measured phases that took time, in the order of a step."""
    return {name: value for name in PHASES if (value := phases.get(name)) and value > 0}


def bar_cells(values: Sequence[float], scale: float, width: int) -> list[int]:
    """Cells for each value when `scale` is `width` cells; the largest remainders are rounded up,
    so that a bar is as long as its sum."""
    if scale <= 0 or width <= 0:
        return [0] * len(values)
    exact = [value / scale * width for value in values]
    sizes = [int(part) for part in exact]
    missing = min(width, round(sum(exact))) - sum(sizes)
    by_remainder = sorted(range(len(exact)), key=lambda i: sizes[i] - exact[i])
    for i in by_remainder[: max(0, missing)]:
        sizes[i] += 1
    return sizes


ROWS = 16
SHORTEST_BAR = 16
"""Columns are left out, least needed first, before a bar gets shorter than this."""


def rank_lines(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Returns a header, a line per rank (or group of ranks), and a legend, each at most `width`
    cells."""
    table = rows(diagnosis, ROWS)
    columns = _columns(table, width)
    fixed_width = sum(size + 2 for size in columns.values()) + 2
    room = max(0, width - fixed_width)
    scale = max((sum(measured_phases(row.phases).values()) for row in table), default=0.0)
    header = Text("  " + _line({name: name for name in columns}, columns), style="dim")
    header.append("where a step's time goes" if scale else "")
    lines = [header]
    used: set[str] = set()
    for row in table:
        row_text = Text("▸ " if row.culprit else "  ", style="bold red")
        style = "bold default" if row.culprit else "not bold default"
        row_text.append(_line(_facts(row), columns), style=style)
        if row.where:
            row_text.append(text.cut(f"in {row.where}", room), style="not bold yellow")
        else:
            spent = measured_phases(row.phases)
            used.update(spent)
            row_text.append(bar(spent, scale, room))
        row_text.truncate(width)
        lines.append(row_text)
    if used:
        lines += _legend([name for name in PHASE_STYLES if name in used], width)
    return lines


def bar(spent: Mapping[str, float], scale: float, width: int) -> Text:
    """Returns the phases of a step, `width` cells for `scale` seconds. A segment is its letter
    repeated, on its colour; waiting is dots without colour."""
    drawn = Text(style="not bold default")
    for name, size in zip(spent, bar_cells(list(spent.values()), scale, width), strict=True):
        style = PHASE_STYLES[name]
        if name == "wait":
            drawn.append(style.letter * size, style="not bold dim default")
        elif size:
            # With colours, one letter per segment is enough: the others are for plain text.
            drawn.append(style.letter, style=style.letter_style)
            same = Style(color=style.colour, bgcolor=style.colour)
            drawn.append(style.letter * (size - 1), style=same)
    return drawn


def _legend(names: Sequence[str], width: int) -> list[Text]:
    lines = [Text("  ")]
    for name in names:
        style = PHASE_STYLES[name]
        entry = Text(style.letter, style="dim" if name == "wait" else style.letter_style)
        entry.append(f" {name}  ", style="not bold dim default")
        if lines[-1].cell_len + entry.cell_len > width:
            lines.append(Text("  "))
        lines[-1].append_text(entry)
    return lines


HOST_AHEAD = "host ahead"
"""Column: how far the host was ahead of the GPU when backward began."""


def _facts(row: Row) -> dict[str, str]:
    return {
        "rank": row.label,
        "host": row.host,
        "state": row.state,
        "step": UNKNOWN if row.step is None else str(row.step),
        "per step": format_seconds(row.seconds),
        HOST_AHEAD: format_run_ahead(row.run_ahead),
    }


def _columns(table: Sequence[Row], width: int) -> dict[str, int]:
    """The columns that fit, each with its width in cells. The host is shown where there are
    several."""
    facts = [_facts(row) for row in table]
    sizes = {
        name: min(14, max(cell_len(name), *(cell_len(fact[name]) for fact in facts)))
        for name in facts[0]
    }
    if not any(row.run_ahead for row in table):
        del sizes[HOST_AHEAD]
    if len({row.host for row in table}) < 2:
        del sizes["host"]
    for name in ("host", "step", HOST_AHEAD, "per step"):
        if sum(size + 2 for size in sizes.values()) + 2 + SHORTEST_BAR > width:
            sizes.pop(name, None)
    return sizes


def _line(facts: Mapping[str, str], columns: Mapping[str, int]) -> str:
    left_aligned = {"host", "state"}
    parts = []
    for name, size in columns.items():
        fact = text.cut(facts[name], size)
        parts.append(set_cell_size(fact, size) if name in left_aligned else fact.rjust(size))
    return "".join(f"{part}  " for part in parts)
