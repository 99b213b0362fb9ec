"""Pieces of text that panels share: gauges, columns, lines of a fixed width. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, overload

from rich.cells import cell_len
from rich.text import Span, Text

FULL, EMPTY = "█", "·"
DIM = "dim"
NOTE = "cyan"
HIGH, FULLEST = 0.85, 0.95


def gauge(share: float | None, width: int, *, alarm: bool = False) -> Text:
    """Returns a bar of `width` cells for a share 0..1; an unknown share is question marks, not
    0."""
    return assemble(*gauge_pieces(share, width, alarm=alarm))


def gauge_pieces(
    share: float | None, width: int, *, alarm: bool = False
) -> tuple[tuple[str, str], ...]:
    """Returns the pieces of a `gauge`, each with its style."""
    if share is None:
        return (("?" * width, DIM),)
    filled = max(0, min(width, round(share * width)))
    style = "green"
    if alarm and share >= HIGH:
        style = "red" if share >= FULLEST else "yellow"
    return (FULL * filled, style), (EMPTY * (width - filled), DIM)


class Stripped(str):
    """Words that come from texts of Rich, which has stripped them of control codes. To do so again
    whenever texts are joined takes an eighth of the time in which the screen is drawn."""

    __slots__ = ()

    def translate(self, table: object, /) -> str:  # noqa: ARG002 - nothing to strip
        return self


def assemble(*pieces: tuple[str, str]) -> Text:
    """Returns a text of pieces, each with its style."""
    spans, at = [], 0
    for words, style in pieces:
        if words and style:
            spans.append(Span(at, at + len(words), style))
        at += len(words)
    return Text("".join([words for words, _ in pieces]), spans=spans)


@lru_cache(1024)
def _text(words: str, style: str) -> Text:
    """Returns a text, which is not to be changed: cells often show the same as before."""
    return Text(words, style=style)


def count_cells(words: str) -> int:
    """Returns the cells that words take on the screen."""
    return len(words) if words.isascii() else cell_len(words)


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
    """Returns `content` cut or padded to the column's width. Not to be changed."""
    plain = content.plain if isinstance(content, Text) else content
    cells = count_cells(plain)
    if cells > column.width:
        cut = content.copy() if isinstance(content, Text) else Text(content, style=style)
        cut.truncate(column.width, overflow="ellipsis")
        return cut
    if isinstance(content, Text):
        if cells == column.width:
            return content
        padded = Stripped(plain + " " * (column.width - cells))
        return Text(padded, content.style, spans=content.spans[:])
    blank = " " * (column.width - cells)
    return _text(blank + plain if column.right else plain + blank, style)


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
    return Text(Stripped((" " * gap).join(plains)), spans=spans)


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
    if left.cell_len > room:
        left = left.copy()
        left.truncate(max(0, room), overflow="ellipsis")
    begin = left.plain + " " * max(0, width - left.cell_len - right.cell_len)
    at, end = len(begin), begin + right.plain
    spans = [*left.spans, *([Span(at, len(end), right.style)] if right.style else [])]
    spans += [Span(start + at, stop + at, style) for start, stop, style in right.spans]
    return Text(Stripped(end), left.style, spans=spans)


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
