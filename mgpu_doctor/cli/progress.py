"""One line on a terminal's standard error that says what takes so long, and goes away again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ERASE = "\r\x1b[K"


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """What it gives shows a sentence in the place of the one before. Silent into a file."""
    shown = False

    def tell(sentence: str) -> None:
        nonlocal shown
        if sys.stderr is not None and sys.stderr.isatty():
            sys.stderr.write(f"{ERASE}mgpu-doctor: {sentence} …")
            sys.stderr.flush()
            shown = True

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
