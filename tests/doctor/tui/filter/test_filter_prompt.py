"""The prompt for a filter, in an app of its own."""

from __future__ import annotations

from typing import ClassVar

import pytest
from textual.app import App
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Input, Static

from mgpu_doctor.tui.filter.language import Filter, parse
from mgpu_doctor.tui.filter.prompt import HINT, MOST_REMEMBERED, Chosen, FilterPrompt

SIZE = (80, 24)


class Small(App[None]):
    """Opens the prompt on `/` and keeps what is answered."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "ask", "filter")]

    def __init__(self, current: Filter | None = None, history: list[str] | None = None) -> None:
        super().__init__()
        self.current = current
        self.history = [] if history is None else history
        self.answers: list[Chosen | None] = []

    def action_ask(self) -> None:
        self.push_screen(FilterPrompt(self.current, self.history), self.answers.append)


def message_of(app: Small) -> str:
    return str(app.screen.query_one("#said", Static).content)


def caret(app: Small) -> str:
    return str(app.screen.query_one("#caret", Static).content)


def typed(app: Small) -> str:
    return app.screen.query_one(Input).value


async def write(pilot: Pilot[None], text: str) -> None:
    await pilot.press(*text)
    await pilot.pause()


async def test_enter_applies() -> None:
    app = Small()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        assert message_of(app) == HINT
        assert app.screen.query_one(Input).size.height == 1
        await write(pilot, "rank:0-3 util<5")
        assert caret(app) == ""
        await pilot.press("enter")
        await pilot.pause()
        assert app.answers == [Chosen(parse("rank:0-3 util<5"))]
        assert len(app.screen_stack) == 1
        assert app.history == ["rank:0-3 util<5"]


async def test_it_says_what_is_wrong_as_one_types_and_stays_open() -> None:
    app = Small()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await write(pilot, "rank:3 utl<5")
        assert caret(app) == " " * 7 + "^"
        assert message_of(app) == "column 8: expected the name of a field: did you mean util?"
        await pilot.press("enter")
        await pilot.pause()
        assert app.answers == []
        assert app.history == []
        await pilot.press(*["left"] * 3, "i")
        await pilot.pause()
        assert typed(app) == "rank:3 util<5"
        assert (caret(app), message_of(app)) == ("", HINT)
        await pilot.press("enter")
        await pilot.pause()
        assert app.answers == [Chosen(parse("rank:3 util<5"))]


@pytest.mark.slow
async def test_the_caret_follows_a_line_that_scrolls() -> None:
    app = Small()
    async with app.run_test(size=(40, 24)) as pilot:
        await pilot.press("slash")
        await write(pilot, "h100 " * 12 + "utl<5")
        scrolled = int(app.screen.query_one(Input).scroll_offset.x)
        assert scrolled > 0
        assert caret(app) == " " * (60 - scrolled) + "^"


async def test_escape_leaves_everything_as_it_was() -> None:
    app = Small(parse("rank:1"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        assert typed(app) == "rank:1"
        await write(pilot, "2")
        await pilot.press("escape")
        await pilot.pause()
        assert app.answers == [None]
        assert app.history == []


async def test_empty_clears() -> None:
    app = Small(parse("rank:1"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await pilot.press("backspace", *"  ", "enter")
        await pilot.pause()
        assert app.answers == [Chosen(None)]
        assert app.history == []


async def test_up_and_down_bring_earlier_filters() -> None:
    app = Small(history=["rank:1", "rank:2"])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await write(pilot, "gpu")
        seen = []
        for key in ("up", "up", "up", "down", "down", "down"):
            await pilot.press(key)
            seen.append(typed(app))
        assert seen == ["rank:2", "rank:1", "rank:1", "rank:2", "gpu", "gpu"]
        await pilot.press("up", "enter")
        await pilot.pause()
        assert app.answers == [Chosen(parse("rank:2"))]
        assert app.history == ["rank:1", "rank:2"]


async def test_history_is_bounded() -> None:
    app = Small(history=[f"rank:{number}" for number in range(MOST_REMEMBERED)])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        await write(pilot, "h100")
        await pilot.press("enter")
        await pilot.pause()
        assert len(app.history) == MOST_REMEMBERED
        assert app.history[0] == "rank:1"
        assert app.history[-1] == "h100"


async def test_markup_is_only_text() -> None:
    app = Small()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash")
        app.screen.query_one(Input).value = "[bold]x[/]<5"
        await pilot.pause()
        assert message_of(app).startswith("column 1: expected the name of a field")
        app.screen.query_one(Input).value = "util<[/nope]"
        await pilot.pause()
        assert message_of(app) == "column 6: expected a number for util, not [/nope]"
