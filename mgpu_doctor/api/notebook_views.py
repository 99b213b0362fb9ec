"""What all results of the API share: JSON, and a short view for a notebook and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

import msgspec

from mgpu_doctor.report.text import line

MOST_ROWS, MOST_NOTES = 20, 5
_STYLE = {
    "critical": "color:#b00020;font-weight:bold",
    "warning": "color:#9a6700;font-weight:bold",
}


@dataclass(frozen=True, slots=True)
class Card:
    """What a short view shows. All texts may be foreign."""

    headline: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


AnyResult = TypeVar("AnyResult", bound="Result")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A result of the API: the object that the verb prints with `--json`."""

    schema: str

    @classmethod
    def from_json(cls: type[AnyResult], text: str | bytes) -> AnyResult:
        """The result in the JSON that a verb wrote. Raises `msgspec.ValidationError` for other
        JSON, and `msgspec.DecodeError` for anything else."""
        return msgspec.json.decode(text, type=cls)

    def to_json(self) -> str:
        """The object as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def make_card(self) -> Card:
        """What the short views show."""
        raise NotImplementedError

    def __str__(self) -> str:
        return render_text(self.make_card())

    def _repr_html_(self) -> str:
        return render_html(self.make_card())


def render_text(card: Card) -> str:
    """The card as lines of text without colours."""
    lines = [line(card.headline), line(card.about)]
    for row in card.rows[:MOST_ROWS]:
        lines.append("  " + " · ".join(line(cell) for cell in row if cell and cell != "–"))
    lines += [f"  {note}" for note in _notes(card)]
    return "\n".join(lines)


def render_html(card: Card) -> str:
    """The card as HTML without scripts; all texts are escaped."""
    parts = [f"<p><b>{_safe(card.headline)}</b><br>{_safe(card.about)}</p>"]
    if card.rows:
        head = "".join(f"<th>{_safe(name)}</th>" for name in card.columns)
        body = "".join(_render_row(row) for row in card.rows[:MOST_ROWS])
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts += [f"<p><small>{_safe(note)}</small></p>" for note in _notes(card)]
    return "".join(parts)


def _render_row(row: Sequence[str]) -> str:
    style = _STYLE.get(row[0])
    first = f'<td style="{style}">' if style else "<td>"
    cells = [f"{first}{_safe(row[0])}</td>"]
    cells += [f'<td style="text-align:left">{_safe(cell)}</td>' for cell in row[1:]]
    return f"<tr>{''.join(cells)}</tr>"


def _notes(card: Card) -> list[str]:
    """The first notes, and how much is left out."""
    notes = [line(note) for note in card.notes[:MOST_NOTES]]
    if card.rows[MOST_ROWS:]:
        notes.append(f"{len(card.rows) - MOST_ROWS} more rows are left out.")
    if card.notes[MOST_NOTES:]:
        notes.append(f"{len(card.notes) - MOST_NOTES} more notes are left out.")
    return notes


def _safe(text: str) -> str:
    return escape(line(text))
