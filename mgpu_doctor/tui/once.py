"""One frame as plain text or JSON, without the live screen."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.text import Text

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.panels import gpus, head, host, ofjob
from mgpu_doctor.tui.view import View

ALL = View()
PARTS = (
    (None, head.lines),
    (None, host.lines),
    ("GPUs", gpus.lines),
    ("Ranks", ofjob.ranks),
    ("Steps", ofjob.heat),
    ("Findings", ofjob.findings),
)


def render(frame: Frame, *, width: int, colour: bool, view: View = ALL) -> str:
    """The frame as lines of at most `width` cells, ending in a newline."""
    shown: list[Text] = []
    for title, lines in PARTS:
        made = lines(frame, width, view)
        if title and made:
            shown.append(Text(f"{title} ".ljust(width, "─"), style="dim"))
        shown += made
    for line in shown:
        line.rstrip()
        line.truncate(width)
    return _coloured(shown, width) if colour else "".join(f"{line.plain}\n" for line in shown)


def _coloured(lines: Sequence[Text], width: int) -> str:
    from mgpu_doctor.report.console import collecting  # a quarter of the time, for colours alone

    console, out = collecting(width, colour=True)
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    return out.getvalue()


def render_json(frame: Frame, view: View = ALL) -> str:
    """`document(frame, view)` as indented ASCII JSON that ends in a newline."""
    from mgpu_doctor.tui.document import document

    return json.dumps(document(frame, view), indent=2, allow_nan=False) + "\n"
