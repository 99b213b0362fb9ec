"""A panel repaints only what has changed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.machine_panels import GraphsPanel
from mgpu_doctor.tui.panel import Panel
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import View
from tests.support.frames import STRAGGLER
from tests.support.screens import screen_text

ROWS = 40


class Watched(Panel):
    def __init__(self) -> None:
        super().__init__(self._rows, "Rows", id="rows", entitle=self._entitled_by)
        self.named = "Rows"
        self.said = {row: f"row {row}" for row in range(ROWS)}
        self.style = ""
        self.made: list[int] = []
        self.painted: list[int] = []

    def _entitled_by(self, frame: Frame, _view: View) -> str:
        return self.named.format(frame.at)

    def _rows(self, _frame: Frame, _width: int, _view: View) -> Sequence[Text]:
        def make(row: int) -> Text:
            self.made.append(row)
            return Text(self.said[row], style=self.style)

        return Rows([Text("head")], len(self.said), make) if self.said else ()

    def render_line(self, y: int) -> Strip:
        self.painted.append(y)
        return super().render_line(y)


class Screen(App[None]):
    CSS = "Watched { height: 14; border-top: solid red; padding: 1 0 0 0; }"

    def compose(self) -> ComposeResult:
        yield Watched()

    @property
    def panel(self) -> Watched:
        return self.query_one(Watched)

    def show(self, at: float) -> None:
        self.panel.made.clear()
        self.panel.painted.clear()
        self.panel.show(Frame(at, "test"), View())


async def at_rest(app: Screen, pilot: Pilot[None]) -> None:
    """Shows the same until nothing of it is painted any more: at first scroll bars come."""
    for turn in range(50):
        app.show(turn)
        await pilot.pause()
        if not app.panel.painted:
            return
    raise AssertionError(f"always painted: {app.panel.painted}")


@pytest.fixture(autouse=True)
def _draw_what_is_read() -> None:
    """Each change is drawn here: which lines are painted is what these tests check."""


async def test_what_says_the_same_is_not_painted_again() -> None:
    app = Screen()
    async with app.run_test(size=(40, 14)) as pilot:
        await at_rest(app, pilot)
        assert max(app.panel.made) < 12, "rows that are not on the screen are not made"
        app.panel.said[3] = "another"
        app.show(100)
        await pilot.pause()
        assert app.panel.painted == [4]
        assert "another" in screen_text(app)
        app.panel.style = "bold"
        app.show(101)
        await pilot.pause()
        assert len(app.panel.painted) > 5, "all rows look different now"


async def test_another_title_is_one_line_to_paint() -> None:
    app = Screen()
    async with app.run_test(size=(40, 14)) as pilot:
        app.panel.named = "[b]Rows, {}[/b]"
        await at_rest(app, pilot)
        for at in (100, 7):
            app.show(at)
            await pilot.pause()
            assert app.panel.painted == []
            assert f"─[b]Rows, {at}[/b]─" in screen_text(app)


async def test_more_rows_out_of_sight_paint_no_line_and_can_be_scrolled_to() -> None:
    app = Screen()
    async with app.run_test(size=(40, 14)) as pilot:
        await at_rest(app, pilot)
        app.panel.said |= {row: f"row {row}" for row in range(ROWS, ROWS + 5)}
        app.show(100)
        await pilot.pause()
        assert app.panel.painted == []
        app.panel.scroll_end(animate=False)
        await pilot.pause()
        assert f"row {ROWS + 4}" in screen_text(app)
        app.panel.said = {row: f"row {row}" for row in range(ROWS - 10)}
        app.show(101)
        await pilot.pause()
        assert f"row {ROWS - 11}" in screen_text(app), "where the last rows are gone, others show"


async def test_rows_that_changed_out_of_sight_are_right_when_scrolled_to() -> None:
    app = Screen()
    async with app.run_test(size=(40, 14)) as pilot:
        await at_rest(app, pilot)
        app.panel.said[30] = "another"
        app.show(100)
        await pilot.pause()
        assert app.panel.painted == []
        app.panel.scroll_end(animate=False)
        await pilot.pause()
        assert "another" in screen_text(app)
        app.panel.said[31] = "a third"
        app.show(101)
        await pilot.pause()
        assert "a third" in screen_text(app)
        assert len(app.panel.painted) == 1


async def test_what_changed_while_it_was_hidden_or_smaller_is_shown() -> None:
    app = Screen()
    async with app.run_test(size=(40, 14)) as pilot:
        app.show(0)
        await pilot.pause()
        kept, app.panel.said = app.panel.said, {}
        app.show(1)
        await pilot.pause()
        assert not app.panel.display
        app.panel.said = {**kept, 2: "another"}
        app.show(2)
        await pilot.pause()
        assert "another" in screen_text(app)
        app.panel.styles.height = 6
        await pilot.pause()
        app.panel.said = {**kept, 2: "another", 7: "a third"}
        app.show(3)
        await pilot.pause()
        assert "a third" not in screen_text(app)
        app.panel.styles.height = 14
        await pilot.pause()
        assert "a third" in screen_text(app)
        app.panel.said = {**app.panel.said, 7: "a fourth"}
        app.show(4)
        await pilot.pause()
        assert "a fourth" in screen_text(app)
        assert "a third" not in screen_text(app)


async def test_graphs_are_drawn_for_every_second_frame_and_at_once_where_a_job_comes() -> None:
    drawn: list[float] = []

    def draw(frame: Frame, _width: int, _view: View) -> Sequence[Text]:
        drawn.append(frame.at)
        return [Text("graph")] if frame.diagnosis is None else []

    class Graphed(App[None]):
        def compose(self) -> ComposeResult:
            yield GraphsPanel(draw, "Machine", id="machine")

    app = Graphed()
    async with app.run_test() as pilot:
        panel = app.query_one(GraphsPanel)
        for at in (10.0, 11.0, 12.0, 13.0, 14.0):
            panel.show(Frame(at, "live"), View())
        await pilot.pause()
        assert sorted({*drawn}) == [10.0, 12.0, 14.0]
        panel.take(0)
        for at in (14.2, 14.4, 14.6, 16.5):
            panel.show(Frame(at, "live"), View())
        assert drawn[-1] == 14.0, "there is no room for it"
        panel.take(1)
        panel.show(Frame(16.6, "live"), View())
        assert drawn[-1] == 16.6
        panel.show(structs.replace(STRAGGLER, at=17.0), View())
        assert drawn[-1] == 17.0
        assert not panel.display
