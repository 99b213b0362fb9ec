"""Where text for a terminal is put together: lines of a width, with or without colours."""

from __future__ import annotations

import io

from rich.console import Console


def collecting(width: int, *, colour: bool) -> tuple[Console, io.StringIO]:
    """A console and what is printed on it. It prints what it is given, whatever the terminal that
    the doctor runs in: no markup, no emoji, nothing highlighted, nothing of the environment."""
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
