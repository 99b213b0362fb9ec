"""A rank is selected by keys, clicks and digits, and stays selected in whatever row it is."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.filter.language import Filter, parse
from mgpu_doctor.tui.job_panels import RanksPanel
from mgpu_doctor.tui.panels import heatmap, rank_table
from mgpu_doctor.tui.panels.table_cells import Rows
from mgpu_doctor.tui.view import Order, RankKey, View
from tests.support import diagnoses
from tests.support.frames import MANY_RANKS, NOTHING, STRAGGLER, frame
from tests.support.frames import heat as map_of
from tests.support.screens import until

HEAD = 2
"""Lines above the first rank."""


class Host(App[None]):
    """The panel alone, and what it asked for."""

    AUTO_FOCUS = None
    CSS = "RanksPanel { height: 14; border-top: solid red; }"

    def __init__(self, shown: Frame) -> None:
        super().__init__()
        self.shown = shown
        self.view = View()
        self.opened: list[RankKey] = []

    def compose(self) -> ComposeResult:
        yield RanksPanel(rank_table.rank_lines, "Ranks", id="ranks")

    @property
    def panel(self) -> RanksPanel:
        return self.query_one(RanksPanel)

    def on_mount(self) -> None:
        self.draw()

    def draw(self, **changes: Any) -> None:
        self.view = self.view._replace(**changes)
        self.panel.show(self.shown, self.view)

    def on_ranks_panel_chosen(self, message: RanksPanel.Chosen) -> None:
        self.draw(rank=message.who)
        if message.opened:
            self.opened.append(message.who)

    @property
    def chosen(self) -> int | None:
        return self.view.rank.rank if self.view.rank is not None else None

    def rows(self) -> list[str]:
        panel = self.panel
        height = panel.scrollable_content_region.height
        return [panel.render_line(y).text for y in range(height)]


async def select(pilot: Pilot[None], rank: int, *keys: str) -> None:
    """Presses the keys; this rank must be selected then."""
    app = pilot.app
    assert isinstance(app, Host)
    await pilot.press(*keys)
    await until(pilot, lambda: app.chosen == rank, f"rank {rank}; {app.chosen} is selected")


async def test_keys_select_and_enter_opens() -> None:
    app = Host(MANY_RANKS)
    async with app.run_test(size=(100, 30)) as pilot:
        assert app.view.rank is None
        app.panel.focus()
        await select(pilot, 37)
        await select(pilot, 38, "down", "down", "up")
        await select(pilot, 38 + 11, "pagedown")
        await select(pilot, 38 - 11, "pageup", "pageup")
        await select(pilot, 63, "end", "down")
        await select(pilot, 0, "home", "up")
        await select(pilot, 45, "4", "5")
        await select(pilot, 9, "9")
        await select(pilot, 1, "down", "1")
        assert not app.opened
        await pilot.press("enter")
        await until(pilot, lambda: app.opened == [RankKey(1, "node-a")], "it is opened")


async def test_a_click_selects_and_a_double_click_opens() -> None:
    app = Host(STRAGGLER)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.click(RanksPanel, offset=(5, 1 + HEAD + 3))
        await select(pilot, 3)
        await pilot.click(RanksPanel, offset=(5, 1))
        await pilot.click(RanksPanel, offset=(5, 1 + HEAD + 9))
        await select(pilot, 3)
        await pilot.click(RanksPanel, offset=(5, 1 + HEAD), times=2)
        await until(pilot, lambda: app.opened == [RankKey(0, "node-a")], "it is opened")


async def test_what_is_blamed_or_selected_is_in_view_below_the_head() -> None:
    app = Host(MANY_RANKS)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.panel.scroll_offset.y > 0, "it has scrolled")
        assert "where the time of a step goes" in app.rows()[1]
        assert any(row.startswith("▸   37") for row in app.rows())
        app.panel.focus()
        await select(pilot, 0, "home")
        await until(pilot, lambda: app.rows()[HEAD].split()[0] == "0", "rank 0 is in view")
        assert "where the time of a step goes" in app.rows()[1]
        app.panel.scroll_to(y=20, animate=False)
        await pilot.pause()
        app.draw()
        await pilot.pause()
        assert app.rows()[HEAD].split()[0] == "20", "a frame does not take away what one reads"


async def test_the_rank_stays_selected_when_sorted_and_filtered() -> None:
    app = Host(STRAGGLER)
    async with app.run_test(size=(100, 30)) as pilot:
        app.panel.focus()
        await select(pilot, 1, "1")
        app.draw(order=Order.OWN, reversed=True)
        assert app.chosen == 1
        selected = [row for row in range(4) if _reversed(app, row)]
        assert [rank_table.listed_ranks(STRAGGLER, app.view)[row].rank for row in selected] == [1]
        only = parse("rank:2-3")
        assert isinstance(only, Filter)
        app.draw(filter=only)
        assert not any(_reversed(app, row) for row in range(2))
        await select(pilot, 2, "down")


def _reversed(app: Host, row: int) -> bool:
    lines = rank_table.rank_lines(STRAGGLER, 100, app.view)
    assert isinstance(lines, Rows)
    line: Text = lines[len(lines.head) + row]
    return any(span.style == "reverse" for span in line.spans)


def test_a_selected_rank_does_not_look_like_a_culprit() -> None:
    rows = rank_table.rank_lines(STRAGGLER, 100, View(rank=RankKey(3, "node-a")))
    console = Console()
    marks = [(line.plain[0], line.get_style_at_offset(console, 0)) for line in rows[HEAD:]]
    assert [mark for mark, style in marks if style.color] == ["▸"]
    assert [bool(style.reverse) for _, style in marks] == [False, False, False, True]


async def test_without_ranks_keys_do_nothing() -> None:
    app = Host(NOTHING)
    async with app.run_test(size=(100, 30)) as pilot:
        app.panel.focus()
        await pilot.press("down", "enter", "7")
        await pilot.pause()
        assert app.chosen is None
        assert not app.opened


@pytest.mark.parametrize("draw", [rank_table.rank_lines, heatmap.heatmap_lines])
def test_of_many_ranks_only_what_is_seen_is_drawn(draw: Any) -> None:
    shown = frame(diagnoses.straggler(256, 37, Outcome.RUNNING), heat=map_of(256, 37))
    lines = draw(shown, 120, View())
    made: list[int] = []

    def make(place: int) -> Text:
        made.append(place)
        return Text()

    watched = Rows(lines.head, lines.many, make, lines.marked)
    assert len(watched) == len(lines.head) + 256
    assert watched[0] is lines.head[0]
    assert len(watched[10:20]) == 10
    first = 10 - len(lines.head)
    assert made == list(range(first, first + 10))
    assert list(lines)[-1].plain.split()[0] == "255"
