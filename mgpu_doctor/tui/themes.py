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
from rich.terminal_theme import TerminalTheme
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES

from mgpu_doctor.tui.sixteen_colours import STANDARD, SixteenColours

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
LIGHT = replace(
    BUILTIN_THEMES["textual-light"],
    background="#f4f4f4",
    surface="#ececec",
    panel="#e2e2e2",
    accent="#9a5b00",
    warning="#9a5b00",
    variables={"footer-key-foreground": "#005a9e"},
)
"""Textual's light theme draws the focus and titles of pages in an orange that is hardly read on its
grey."""
_NORMAL = [
    (0, 0, 0), (170, 38, 32), (38, 108, 20), (138, 88, 0),
    (34, 75, 170), (112, 52, 147), (0, 98, 134), (200, 200, 200),
]  # fmt: skip
_BRIGHT = [
    (95, 95, 95), (190, 45, 45), (38, 118, 20), (150, 95, 0),
    (0, 98, 170), (165, 40, 165), (0, 108, 134), (160, 160, 160),
]  # fmt: skip
LIGHT_COLOURS = TerminalTheme((244, 244, 244), (0, 0, 0), _NORMAL, _BRIGHT)
"""The 16 colours of text on a light ground: the contrast of each but the two whites is at least 4.5
(WCAG AA); of Textual's it is 2.2 for yellow."""
DARK_COLOURS = TerminalTheme(
    (12, 12, 12),
    (217, 217, 217),
    [
        (26, 26, 26), (244, 0, 95), (152, 224, 36), (253, 151, 31),
        (157, 101, 255), (220, 115, 220), (88, 209, 235), (196, 197, 181),
    ],
    [
        (98, 94, 76), (244, 0, 95), (152, 224, 36), (224, 213, 97),
        (157, 101, 255), (220, 115, 220), (88, 209, 235), (246, 246, 239),
    ],
)  # fmt: skip
"""The 16 colours of text on a dark ground: Textual's, except for a magenta that is not its red, the
colour of alarms."""
ROUND = {"textual-dark": "dark", LIGHT.name: "light", MONOCHROME.name: "without colour"}
"""The themes that one key goes through, and what they are called on the screen."""


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
        self.register_theme(LIGHT)
        self.ansi_theme_light = LIGHT_COLOURS
        self.ansi_theme_dark = DARK_COLOURS
        if self.no_color:
            self.theme = MONOCHROME.name

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Returns the filters of every drawn line, applied last."""
        if self.theme == MONOCHROME.name:
            return [NO_COLOUR]
        filters = super().get_line_filters()
        if self.console.color_system != STANDARD:
            return filters
        return [*filters, SixteenColours(dark=self.current_theme.dark)]

    def action_next_theme(self) -> None:
        """Switches to the next theme; from an unknown one, to the first."""
        names = list(ROUND)
        place = names.index(self.theme) + 1 if self.theme in ROUND else 0
        self.theme = names[place % len(names)]
        self.notify(f"Theme: {ROUND[self.theme]}.", markup=False)
