"""Pieces of text that panels share: gauges, columns, lines of a fixed width. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, overload

from rich.cells import cell_len, set_cell_size
from rich.text import Span, Text

FULL, EMPTY = "█", "·"
DIM = "dim"
NOTE = "cyan"
HIGH, FULLEST = 0.85, 0.95


def gauge(share: float | None, width: int, *, alarm: bool = False) -> Text:
    """Returns a bar of `width` cells for a share 0..1; an unknown share is question marks, not
    0."""
    if share is None:
        return Text("?" * width, style=DIM)
    filled = max(0, min(width, round(share * width)))
    style = "green"
    if alarm and share >= HIGH:
        style = "red" if share >= FULLEST else "yellow"
    return Text.assemble((FULL * filled, style), (EMPTY * (width - filled), DIM))


class Column(NamedTuple):
    """A column of a table: `rank` 0 is never dropped; of the others the highest goes first."""

    title: str
    width: int
    right: bool = False
    rank: int = 0


def fitting(columns: Sequence[Column], width: int, spare: int = 0) -> list[Column]:
    """Returns the columns that fit in `width` cells, one cell apart, with `spare` cells left
    over."""
    kept = list(columns)
    while kept and sum(column.width + 1 for column in kept) + spare > width:
        dispensable = [column for column in kept if column.rank]
        if not dispensable:
            break
        kept.remove(max(dispensable, key=lambda column: column.rank))
    return kept


def cell(content: str | Text, column: Column, style: str = "") -> Text:
    """Returns `content` cut or padded to the column's width."""
    plain = content.plain if isinstance(content, Text) else content
    if cell_len(plain) > column.width:
        cut = content.copy() if isinstance(content, Text) else Text(content, style=style)
        cut.truncate(column.width, overflow="ellipsis")
        return cut
    if isinstance(content, Text):
        missing = column.width - cell_len(plain)
        return content.copy().append(" " * missing) if missing else content
    filled = plain.rjust(column.width) if column.right else set_cell_size(plain, column.width)
    return Text(filled, style=style)


def join_parts(parts: Iterable[Text], gap: int = 1) -> Text:
    """Returns the parts side by side, `gap` cells apart: Rich's `join` in a third of its time."""
    plains, spans, at = [], [], 0
    for part in parts:
        plain = part.plain
        if part.style:
            spans.append(Span(at, at + len(plain), part.style))
        spans += [Span(start + at, end + at, style) for start, end, style in part.spans]
        plains.append(plain)
        at += len(plain) + gap
    return Text((" " * gap).join(plains), spans=spans)


def begun(words: str, room: int, least: int = 8) -> str:
    """Returns the whole words that fit in `room` cells, and an ellipsis; empty if they would fill
    fewer than `least` cells."""
    if cell_len(words) <= room:
        return words
    parts = words.split(" ")
    fit = (" ".join(parts[:many]) for many in range(len(parts) - 1, 0, -1))
    shown = next((part for part in fit if cell_len(part) + 2 <= room), "")
    return f"{shown.rstrip(':,;')} …" if cell_len(shown) >= least else ""


def sentence(words: str, width: int) -> list[Text]:
    """Returns the sentence shown instead of a table, wrapped."""
    return [Text(line, style=DIM) for line in textwrap.wrap(words, max(1, width))]


def ends(left: Text, right: Text, width: int) -> Text:
    """Returns a line with `left` and `right` at its ends; `left` is cut if both do not fit."""
    room = width - right.cell_len - 1
    if room < width // 3:
        room, right = width, Text("")
    shown = left.copy()
    shown.truncate(max(0, room), overflow="ellipsis")
    shown.append(" " * max(0, width - shown.cell_len - right.cell_len))
    return shown.append_text(right)


class Rows(Sequence[Text]):
    """A table. `head`: lines that do not scroll. `make` returns row 0 to `many - 1`. `marked`: the
    row to keep in view."""

    def __init__(
        self,
        head: Sequence[Text],
        many: int,
        make: Callable[[int], Text],
        marked: int | None = None,
    ) -> None:
        self.head, self.many, self.make, self.marked = head, many, make, marked

    def __len__(self) -> int:
        return len(self.head) + self.many

    @overload
    def __getitem__(self, place: int) -> Text: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Text]: ...
    def __getitem__(self, place: int | slice) -> Text | Sequence[Text]:
        if isinstance(place, slice):
            return [self[index] for index in range(len(self))[place]]
        line = range(len(self))[place]
        return self.head[line] if line < len(self.head) else self.make(line - len(self.head))
