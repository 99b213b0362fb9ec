"""Collects text for a terminal: lines of a fixed width, with or without colours."""

from __future__ import annotations

import io

from rich.console import Console


def collecting(width: int, *, colour: bool) -> tuple[Console, io.StringIO]:
    """Returns a console and the buffer of its output. It is independent of the doctor's own
    terminal and environment: no markup, no emoji, no highlighting."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="256" if colour else None,
        no_color=not colour,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
        _environ={},
    )
    return console, out
