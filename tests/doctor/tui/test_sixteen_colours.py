"""What is sent to a terminal that has only 16 colours: every text on a ground that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.color import Color, ColorType
from rich.style import Style
from textual._context import visible_screen_stack

from mgpu_doctor.report.phase_bars import PHASE_STYLES
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.sixteen_colours import (
    BLACK,
    BLUE,
    BRIGHT,
    CYAN,
    GREEN,
    MAGENTA,
    RED,
    WHITE,
    YELLOW,
    in_sixteen,
)
from mgpu_doctor.tui.themes import LIGHT, MONOCHROME, ThemedApp
from tests.doctor.tui.test_themes import Everything, segments
from tests.support.frames import EIGHT_GPUS
from tests.support.screens import Still, screen_text, shown, until

DARK_INKS = {WHITE, *(BRIGHT + hue for hue in (RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, WHITE))}
READABLE = {
    BLACK: DARK_INKS,
    BRIGHT + WHITE: {BLACK, RED, BLUE, MAGENTA},
    **{ground: {BLACK} for ground in (GREEN, YELLOW, CYAN, WHITE)},
    **{ground: {BRIGHT + WHITE} for ground in (RED, BLUE, MAGENTA)},
}
"""A ground -> the colours of text that xterm, VGA and most other palettes show readably on it."""


@pytest.fixture(autouse=True)
def _with_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "standard")


def pair(style: Style) -> tuple[int | None, int | None]:
    """The numbers of the text's colour and of that behind it."""
    assert style.color is not None
    assert style.bgcolor is not None
    assert style.color.type is style.bgcolor.type is ColorType.STANDARD
    return style.color.number, style.bgcolor.number


@pytest.mark.parametrize(("theme", "ground"), [("textual-dark", BLACK), (LIGHT.name, 15)])
async def test_all_text_of_the_screen_is_readable(theme: str, ground: int) -> None:
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        app.theme = theme
        await pilot.pause()
        pairs = {pair(segment.style) for segment in segments(app) if segment.style}
    assert len({ink for ink, behind in pairs if behind == ground}) >= 4
    assert [(ink, behind) for ink, behind in pairs if ink not in READABLE[behind or 0]] == []


async def test_without_colour_none_of_the_sixteen_is_used() -> None:
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        app.theme = MONOCHROME.name
        await pilot.pause()
        assert not any(s.style.color or s.style.bgcolor for s in segments(app) if s.style)


def test_other_terminals_get_the_colours_of_the_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sixteen = len(ThemedApp().get_line_filters())
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "256")
    assert len(ThemedApp().get_line_filters()) == with_sixteen - 1


@pytest.mark.parametrize("dark", [True, False])
def test_a_warning_does_not_look_like_an_error(dark: bool) -> None:
    red, yellow = Color.parse("#aa2620"), Color.parse("#8a5800")
    error, warning = (in_sixteen(Style(color=colour), dark) for colour in (red, yellow))
    assert pair(error)[0] in (RED, BRIGHT + RED)
    assert pair(warning)[0] == (BRIGHT + YELLOW if dark else MAGENTA)


@pytest.mark.parametrize("dark", [True, False])
def test_letters_of_a_bar_are_readable(dark: bool) -> None:
    """With more colours, all but the first letter have the colour of the bar."""
    for phase in PHASE_STYLES.values():
        ink, behind = pair(in_sixteen(Style(color=phase.colour, bgcolor=phase.colour), dark))
        assert ink in READABLE[behind or 0], phase


def test_a_style_keeps_its_clicks_and_its_weight() -> None:
    style = Style(color="#aa2620", bold=True, reverse=True, meta={"row": 3}, link="x://y")
    made = in_sixteen(style, True)
    assert (made.bold, made.reverse, made.meta, made.link) == (True, True, {"row": 3}, "x://y")


@contextmanager
def _below(app: TopApp) -> Iterator[None]:
    """Lets a screen show those below it, as Textual does when it draws."""
    before = visible_screen_stack.set(list(app._background_screens))
    yield
    visible_screen_stack.reset(before)


@pytest.mark.parametrize("theme", ["textual-dark", LIGHT.name])
async def test_the_screen_keeps_its_colours_behind_the_filter(theme: str) -> None:
    app = TopApp(Still(EIGHT_GPUS), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        app.theme = theme
        await shown(pilot)

        def colours() -> list[list[tuple[int | None, int | None]]]:
            """Those of each cell of the upper lines."""
            app.screen.refresh()
            with _below(app):
                upper = app.screen._compositor.render_strips()[:14]
            return [
                [pair(one.style) for one in line for _ in one.text if one.style] for line in upper
            ]

        await until(pilot, lambda: "Findings" in screen_text(app), "all panels")
        before = colours()
        await pilot.press("slash")
        await until(pilot, lambda: "Show only" in screen_text(app), "the prompt")
        assert colours() == before
        assert len({ink for line in before for ink, _ in line}) >= 4
