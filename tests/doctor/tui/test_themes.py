"""Dark, light and colourless themes: what is sent to the terminal."""

from __future__ import annotations

import pytest
from msgspec import structs
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual import color as textual_color
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, Input, Select

from mgpu_doctor.tui.job_panels import FindingsPanel
from mgpu_doctor.tui.panel import Panel, Room
from mgpu_doctor.tui.panels import finding_list, gpu_table, header, heatmap, rank_table
from mgpu_doctor.tui.sixteen_colours import in_sixteen
from mgpu_doctor.tui.themes import LIGHT, LIGHT_COLOURS, MONOCHROME, ROUND, ThemedApp, plain
from mgpu_doctor.tui.view import View
from tests.support.frames import EIGHT_GPUS, RESOLVED
from tests.support.screens import screen_text

DRAWN = structs.replace(EIGHT_GPUS, followed=RESOLVED.followed)


class Everything(ThemedApp):
    """Panels, and the widgets that the other screens are made of."""

    BINDINGS = [("t", "next_theme", "theme")]  # noqa: RUF012 - as Textual declares it

    def compose(self) -> ComposeResult:
        yield Input("typed")
        yield DataTable[str](cursor_type="row")
        yield Select([("one", 1), ("two", 2)])
        yield Panel(header.header_lines, id="head")
        yield Panel(gpu_table.gpu_lines, "GPUs", id="gpus", room=Room(1))
        yield Panel(rank_table.rank_lines, "Ranks", id="ranks", room=Room(1))
        yield Panel(heatmap.heatmap_lines, "Steps", id="heat", room=Room(1))
        yield FindingsPanel(finding_list.finding_lines, "Findings", id="findings", room=Room(1))
        yield Footer()

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("job", "ranks")
        table.add_rows([("chosen", "4"), ("other", "2")])
        for panel in self.query(Panel):
            panel.show(DRAWN, View())


@pytest.fixture(autouse=True)
def _with_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)


def segments(app: App[None]) -> list[Segment]:
    """Everything that is on the screen."""
    return [one for line in app.screen._compositor.render_strips() for one in line]


def colours(app: App[None]) -> set[Color]:
    styles = [segment.style for segment in segments(app) if segment.style]
    return {colour for style in styles for colour in (style.color, style.bgcolor) if colour}


async def test_t_goes_round_and_monochrome_leaves_no_colour() -> None:
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        seen = []
        for name in (*ROUND, "textual-dark"):
            await pilot.pause()
            assert app.theme == name
            seen.append((colours(app), screen_text(app)))
            app.action_next_theme()
        (dark, shown), (light, in_light), (none, in_none), (again, at_last) = seen
        assert none == set()
        assert len(dark) > 8
        assert len(light) > 8
        assert dark != light
        assert again == dark
        assert shown == in_light == in_none == at_last


async def test_no_color_starts_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.pause()
        assert app.theme == MONOCHROME.name
        assert colours(app) == set()


async def test_without_colour_what_is_chosen_is_still_to_be_seen() -> None:
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        app.theme = MONOCHROME.name
        app.query_one(DataTable).focus()
        await pilot.pause()
        turned = "".join(
            segment.text for segment in segments(app) if segment.style and segment.style.reverse
        )
        assert "chosen" in turned
        assert "other" not in turned
        bold = {
            segment.text.strip()
            for segment in segments(app)
            if segment.style and segment.style.bold
        }
        assert "straggler-input" in bold
        assert "✗" in screen_text(app)


def test_a_style_keeps_its_clicks_and_what_any_terminal_shows() -> None:
    style = Style(color="red", bold=True, dim=True, italic=True, meta={"row": 3}, link="x://y")
    made = plain(style)
    assert (made.color, made.bold, bool(made.dim), bool(made.italic)) == (None, True, False, False)
    assert (made.meta, made.link, made.reverse) == ({"row": 3}, "x://y", False)
    assert plain(Style(bgcolor="blue")).reverse
    assert not plain(Style(bgcolor="default")).reverse


async def test_a_theme_of_the_palette_leads_back_to_the_first() -> None:
    app = Everything()
    async with app.run_test(size=(80, 24)):
        app.theme = "nord"
        app.action_next_theme()
        assert app.theme == "textual-dark"


async def test_the_graph_of_gpu_memory_has_not_the_colour_of_an_alarm() -> None:
    app = Everything()
    async with app.run_test():
        for theme, dark in (("textual-dark", True), (LIGHT.name, False)):
            app.theme = theme
            colours = (app.ansi_theme_dark if dark else app.ansi_theme_light).ansi_colors
            red, magenta = colours[1], colours[5]
            assert red != magenta
            inks = [in_sixteen(Style(color=Color.from_rgb(*each)), dark) for each in (red, magenta)]
            assert inks[0].color != inks[1].color


def test_text_can_be_read_on_the_light_ground() -> None:
    """Contrast of WCAG, level AA: 4.5, except for the two whites."""
    colours = [textual_color.Color(*colour) for colour in LIGHT_COLOURS.ansi_colors._colors]
    readable = [*colours[:7], *colours[8:15], textual_color.Color.parse(LIGHT.accent or "")]
    for ground in (
        textual_color.Color.parse(LIGHT.background or ""),
        textual_color.Color.parse(LIGHT.surface or ""),
    ):
        assert min(_contrast(colour, ground) for colour in readable) >= 4.5


async def test_letters_can_be_read_on_the_light_ground() -> None:
    """Words and letters that are drawn; in a bar, the letters of the bar's own colour fill it."""
    app = Everything()
    async with app.run_test(size=(120, 50)) as pilot:
        app.theme = LIGHT.name
        await pilot.pause()
        hard = {
            segment.text
            for segment in segments(app)
            if any(map(str.isalnum, segment.text)) and _is_hard_to_read(segment.style)
        }
        assert hard == set()


def _is_hard_to_read(style: Style | None) -> bool:
    if style is None or style.color is None or style.bgcolor is None:
        return False
    ink, ground = (
        textual_color.Color(*colour.get_truecolor()) for colour in (style.color, style.bgcolor)
    )
    darker, lighter = sorted((ink, ground), key=_luminance)
    return ink != ground and _contrast(darker, lighter) < 3.0


def _contrast(ink: textual_color.Color, ground: textual_color.Color) -> float:
    return (_luminance(ground) + 0.05) / (_luminance(ink) + 0.05)


def _luminance(colour: textual_color.Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
