"""One frame as plain text or JSON, without the live screen."""

from __future__ import annotations

import io
import json

from rich.console import Console
from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.document import document
from mgpu_doctor.tui.panels import findings, gpus, head, heat, host, ranks
from mgpu_doctor.tui.view import View

ALL = View()
PARTS = (
    (None, head.lines),
    (None, host.lines),
    ("GPUs", gpus.lines),
    ("Ranks", ranks.lines),
    ("Steps", heat.lines),
    ("Findings", findings.lines),
)


def render(frame: Frame, *, width: int, colour: bool, view: View = ALL) -> str:
    """The frame as lines of at most `width` cells, ending in a newline."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},
    )
    for title, lines in PARTS:
        made = lines(frame, width, view)
        if title and made:
            console.print(Text(f"{title} ".ljust(width, "─"), style="dim"))
        for line in made:
            line.rstrip()
            console.print(line, no_wrap=True, overflow="crop", crop=True)
    return out.getvalue()


def render_json(frame: Frame, view: View = ALL) -> str:
    """`document(frame, view)` as indented ASCII JSON that ends in a newline."""
    return json.dumps(document(frame, view), indent=2, allow_nan=False) + "\n"
