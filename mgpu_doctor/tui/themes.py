"""Dark, light, or without any colour: bold, underlined and reversed text alone.

Panels colour their text themselves and widgets by the style sheet, so colour is removed from the
finished lines of the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES

_NATIVE = BUILTIN_THEMES["ansi-dark"]
MONOCHROME = replace(
    _NATIVE,
    name="monochrome",
    variables={
        **_NATIVE.variables,
        # Else the whole track would be as much reversed as the thumb on it.
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
    },
)
ROUND = ("textual-dark", "textual-light", MONOCHROME.name)
"""The themes that one key goes through."""


class NoColour(LineFilter):
    """Removes every colour; text with a background colour is reversed."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        del background
        return [Segment(text, style and plain(style), control) for text, style, control in segments]


@lru_cache(4096)
def plain(style: Style) -> Style:
    """`style` with what every terminal can show without colours, and what a click means there."""
    ground = style.bgcolor
    stands_out = ground is not None and not ground.is_default
    return Style(
        bold=bool(style.bold),
        underline=bool(style.underline),
        reverse=bool(style.reverse) or stands_out,
        link=style.link,
        meta=style.meta or None,
    )


NO_COLOUR = NoColour()


class ThemedApp(App[None]):
    """An app that cycles through these themes. With NO_COLOR in its environment it starts without
    any
    colour, and the other two themes are greys."""

    def __init__(self) -> None:
        super().__init__()
        self.register_theme(MONOCHROME)
        if self.no_color:
            self.theme = MONOCHROME.name

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Returns the filters of every drawn line, applied last."""
        filters = super().get_line_filters()
        return [NO_COLOUR] if self.theme == MONOCHROME.name else filters

    def action_next_theme(self) -> None:
        """Switches to the next theme; from an unknown one, to the first."""
        place = ROUND.index(self.theme) + 1 if self.theme in ROUND else 0
        self.theme = ROUND[place % len(ROUND)]
