"""Lines are joined and painted as Rich and Textual would do it, cell by cell."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from mgpu_doctor.tui.line_strips import make_strip
from mgpu_doctor.tui.panels.table_cells import join_parts

BASE = Style.parse("white on #102030")
WIDTH = 12


def marked(text: Text) -> Text:
    text.stylize("reverse", 0, 3)
    return text


LINES = (
    Text(),
    Text("plain"),
    Text("as wide now", style="dim").append("!", "bold red"),
    Text("wider than the screen", style="green"),
    Text.assemble(("gpu", "bold"), " ", ("\u2588\u2588", "green"), ("\u00b7\u00b7", "dim"), "  ok"),
    marked(Text.assemble(("1", "bold"), (" busy", "no such style"))),
    Text.assemble(("\u4e2d\u6587", "cyan"), (" wide", Style(underline=True))),
    Text("abc", spans=[]).append("", "red").append("d", "red"),
)


def cells(strip: Strip) -> list[tuple[str, Style | None]]:
    return [(character, style) for text, style, _ in strip for character in text]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.plain)
def test_a_strip_is_what_rich_renders(line: Text) -> None:
    console, spanned = Console(), line.copy()
    if not line.spans:  # Rich would leave out its style
        spanned.stylize(line.style)
    rendered = Strip(spanned.render(console), line.cell_len).adjust_cell_length(WIDTH, BASE)
    strip = make_strip(line, WIDTH, BASE, console)
    assert strip.cell_length == WIDTH
    assert cells(strip) == cells(rendered.apply_style(BASE))


def test_parts_beside_one_another_are_what_rich_joins() -> None:
    joined, made = Text("  ").join(LINES), join_parts(LINES, 2)
    assert (made.plain, made.spans, made.style) == (joined.plain, joined.spans, joined.style)
