"""Colours for terminals that have only 16, such as TERM=xterm, screen or linux without COLORTERM.

Rich takes the nearest of xterm's 16 colours. That makes a warning's yellow red and a critical red
magenta, puts red letters on grey, and yellow ones on white. So a colour is chosen here by its hue,
and such that text can be read on the ground of the theme.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color, ColorType
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as TextualColor
from textual.filter import LineFilter

STANDARD = "standard"
"""Rich's name of a terminal with 16 colours."""
BLACK, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE = range(8)
BRIGHT = 8
HUES = (
    (0.08, RED), (0.19, YELLOW), (0.44, GREEN), (0.55, CYAN),
    (0.70, BLUE), (0.92, MAGENTA), (1.00, RED),
)  # fmt: skip
"""Where a hue ends, of 1 around the circle, and its colour."""
GREY_BELOW = 0.2
"""Saturation below which a colour has no hue. A choice: the themes' greys have at most 0.18."""
NEAR_GROUND = 0x50
"""Difference of a channel below which a colour behind text is the ground: panels, pages, rules."""
INK_ON: Mapping[int, int] = {
    **dict.fromkeys((GREEN, YELLOW, CYAN, WHITE), BLACK),
    **dict.fromkeys((RED, BLUE, MAGENTA), BRIGHT + WHITE),
}
"""A colour behind text -> the text's. On the other one, text is not readable in every palette."""
ON_DARK: Mapping[int, int] = {
    colour: BRIGHT + colour for colour in (RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN)
}
ON_LIGHT: Mapping[int, int] = {
    RED: RED, YELLOW: MAGENTA, MAGENTA: MAGENTA, GREEN: BLUE, CYAN: BLUE, BLUE: BLUE,
}  # fmt: skip
"""A text's hue -> its colour. On white, xterm's yellow, green and cyan have a contrast of 2 or
less."""


class SixteenColours(LineFilter):
    """Replaces every colour by one of the 16. `dark`: whether the theme's ground is dark."""

    def __init__(self, *, dark: bool) -> None:
        super().__init__()
        self._dark = dark

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        del background
        return [
            Segment(text, style and in_sixteen(style, self._dark), control)
            for text, style, control in segments
        ]


@lru_cache(4096)
def in_sixteen(style: Style, dark: bool) -> Style:
    """Returns `style` with colours of the 16 alone, unchanged if those behind the text already are.
    Text that has the colour of what lies behind it, as the letters of a bar, becomes readable."""
    if style.bgcolor is not None and style.bgcolor.type is ColorType.STANDARD:
        return style
    ground = BLACK if dark else BRIGHT + WHITE
    behind = ground if _is_unset(style.bgcolor) else _behind(_triplet(style.bgcolor), dark)
    if behind != ground:
        ink = INK_ON[behind]
    elif _is_unset(style.color):
        ink = WHITE if dark else BLACK
    else:
        ink = _ink(_triplet(style.color), dark)
    return style + Style(color=Color.from_ansi(ink), bgcolor=Color.from_ansi(behind), dim=False)


def _is_unset(color: Color | None) -> bool:
    return color is None or color.is_default


def _triplet(color: Color | None) -> ColorTriplet:
    assert color is not None  # checked by the caller
    return color.get_truecolor()


def _hue(triplet: ColorTriplet) -> int | None:
    """Returns the colour of this hue; None for a grey."""
    hue, saturation, _ = colorsys.rgb_to_hsv(*triplet.normalized)
    if saturation < GREY_BELOW:
        return None
    return next(colour for end, colour in HUES if hue <= end)


def _ink(triplet: ColorTriplet, dark: bool) -> int:
    colour = _hue(triplet)
    if colour is not None:
        return ON_DARK[colour] if dark else ON_LIGHT[colour]
    # No bright black: some palettes have it as their ground.
    if dark:
        return BRIGHT + WHITE if min(triplet) > 0xC8 else WHITE
    return BLACK


def _behind(triplet: ColorTriplet, dark: bool) -> int:
    ground = ColorTriplet(0, 0, 0) if dark else ColorTriplet(255, 255, 255)
    distance = max(abs(part - base) for part, base in zip(triplet, ground, strict=True))
    if distance < NEAR_GROUND:
        return BLACK if dark else BRIGHT + WHITE
    colour = _hue(triplet)
    return WHITE if colour is None else colour
