"""One line on a terminal's standard error that says what takes so long, and goes away again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mgpu_doctor.cli.output import draw, width
from mgpu_doctor.launch.say import one_line

ERASE = "\r\x1b[K"


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What it gives shows a sentence in the place of the one before. Silent into a file."""
    shown = False

    def tell(sentence: str) -> None:
        nonlocal shown
        if sys.stderr is not None and sys.stderr.isatty():
            from mgpu_doctor.report.text import cut

            # What is longer than a line could not be erased as one.
            line = cut(f"mgpu-doctor: {one_line(sentence)} …", width(sys.stderr) - 1)
            draw(ERASE + line)
            shown = True

    try:
        yield tell
    finally:
        if shown:
            draw(ERASE)
