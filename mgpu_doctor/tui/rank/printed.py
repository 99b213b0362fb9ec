"""What a rank printed, as lines that end in the newest. Pure."""

from __future__ import annotations

from rich.cells import chop_cells
from rich.text import Text

from mgpu_doctor.live.rank.output import Output
from mgpu_doctor.report import text
from mgpu_doctor.tui.panels.parts import DIM
from mgpu_doctor.tui.panels.rows import Rows

NOBODYS = "dim: no label tells which rank printed it"
LEAST = 8


def lines(output: Output, width: int, *, follow: bool) -> Rows:
    """`follow`: the last line shall be on the screen."""
    shown: list[tuple[str, str]] = []
    if output.reason is not None:
        shown = [(one, DIM) for one in _folded(output.reason, width)]
    for stream in output.streams:
        foreign = any(not one.own for one in stream.lines)
        name = text.line(stream.name)
        title = f"{name}  {NOBODYS}" if foreign else name
        shown.append((text.cut(title, width), "cyan"))
        for one in stream.lines:
            style = "" if one.own else DIM
            shown += [(piece, style) for piece in _folded(one.text, width)]

    def make(place: int) -> Text:
        words, style = shown[place]
        return Text(words, style=style)

    return Rows((), len(shown), make, len(shown) - 1 if follow and output.streams else None)


def _folded(words: str, width: int) -> list[str]:
    """Indents are kept: they are what makes a traceback readable."""
    return chop_cells(text.clean(words).replace("\n", " "), max(LEAST, width)) or [""]
