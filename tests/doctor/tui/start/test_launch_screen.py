"""The launch form: keys, the typed command, starting, and failing to start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Select

from mgpu_doctor.tui.jobs.launch_screen import LaunchScreen, Row
from mgpu_doctor.tui.jobs.starting import NotStartedError, Started
from tests.support.screen_app import ScreenApp
from tests.support.screens import GOLDEN_SIZE, check_sizes, screen_text, until

STARTED = Started(Path("/runs/20260917-101500-train-4711"), 4711)


class Starter:
    """Notes what it is told, and starts nothing."""

    def __init__(self, failure: str | None = None) -> None:
        self.told: list[tuple[str, ...]] = []
        self._failure = failure

    def __call__(self, words: Sequence[str]) -> Started:
        self.told.append(tuple(words))
        if self._failure is not None:
            raise NotStartedError(self._failure)
        return STARTED


async def begun(app: ScreenApp, pilot: Pilot[Any]) -> None:
    """The form is there, and its footer, which comes last."""
    await until(pilot, lambda: "mgpu-doctor train torch-ddp" in screen_text(app), "the form")
    await until(pilot, lambda: "esc back" in screen_text(app), "the footer")


async def test_launch_screen() -> None:
    app = ScreenApp(LaunchScreen(Starter()))
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await begun(app, pilot)
        await check_sizes(pilot, "launch")


async def test_typing_shows_the_command_or_what_is_wrong_and_start_starts_it() -> None:
    starter = Starter()
    app = ScreenApp(LaunchScreen(starter))
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(app, pilot)
        await pilot.press("4", "tab", "x")
        await until(pilot, lambda: "--steps takes a whole number" in screen_text(app), "the fault")
        wrong = [row.option for row in app.screen.query(".-wrong").results(Row)]
        assert wrong == ["steps"]
        await pilot.press("ctrl+s", "ctrl+y")
        assert (starter.told, app.copied) == ([], [])
        await pilot.press("backspace", "6", "0")
        command = "mgpu-doctor train torch-ddp --ranks 4 --steps 60"
        await until(pilot, lambda: command in screen_text(app), "the command")
        await pilot.press("ctrl+y")
        assert app.copied == [command]
        await pilot.press("ctrl+s")
        await until(pilot, lambda: bool(app.results), "the start")
    assert " ".join(("mgpu-doctor", *starter.told[0])) == command
    assert app.results == [STARTED]


async def test_usual_options_come_first_and_the_others_are_unfolded_by_a_key() -> None:
    app = ScreenApp(LaunchScreen(Starter()))
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(app, pilot)
        usual = [row.option for row in app.screen.query("#options Row").results(Row)]
        assert usual == ["ranks", "steps", "model", "batch", "workers", "precision"]
        assert "no fault: choose one" in screen_text(app)
        assert "accumulate" not in screen_text(app)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "accumulate" in screen_text(app), "the other options")


@pytest.mark.slow
async def test_what_is_typed_at_once_after_tab_is_the_next_field_s() -> None:
    app = ScreenApp(LaunchScreen(Starter()))
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(app, pilot)
        for key, character in (("4", "4"), ("tab", None), ("7", "7")):  # faster than a person
            app.post_message(Key(key, character))
        await until(pilot, lambda: "--ranks 4 --steps 7 " in screen_text(app), "both numbers")


async def test_five_keys_start_a_trainer_with_a_fault() -> None:
    starter = Starter()
    app = ScreenApp(LaunchScreen(starter))
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(app, pilot)
        await pilot.press("ctrl+n")
        what = "hang: loops in its own code and never reaches"
        await until(pilot, lambda: what in screen_text(app), "what each fault does")
        await pilot.press("down", "enter")
        await until(pilot, lambda: "--fault slow" in screen_text(app), "the fault")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: bool(app.results), "the start")
    assert "--fault" in starter.told[0]


async def test_a_fault_where_there_is_none_goes_to_the_choice_of_the_first() -> None:
    app = ScreenApp(LaunchScreen(Starter()))
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(app, pilot)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "choose one to inject" in screen_text(app), "the choice")
        await pilot.press("escape")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "kind", "the rest")


async def test_the_focus_of_a_choice_shows_without_colour() -> None:
    """That of an input shows by its cursor."""
    app = ScreenApp(LaunchScreen(Starter()))
    async with app.run_test(size=(80, 24)) as pilot:
        await begun(app, pilot)
        for selector, shown in (
            ("#trainer", "torch-ddp"),
            ("#kind", "no fault: choose one to inject"),
        ):
            app.screen.query(selector).first().focus()
            await until(pilot, partial(_bold_is, app, shown), shown)


def _bold_is(app: ScreenApp, words: str) -> bool:
    """Whether these words alone are bold above the command, which always is."""
    return {
        segment.text.strip()
        for strip in app.screen._compositor.render_strips()[:-3]
        for segment in strip
        if segment.style and segment.style.bold
    } == {words}


async def test_faults_are_built_from_their_keys() -> None:
    starter = Starter()
    app = ScreenApp(LaunchScreen(starter))
    async with app.run_test(size=(120, 50)) as pilot:
        await begun(app, pilot)
        kind = app.screen.query_one("#kind", Select)
        kind.value = "slow"
        await until(pilot, lambda: "--fault slow:ms=50" in screen_text(app), "a valid fault")
        app.screen.query("#keys Input").first().focus()
        await pilot.press("tab", "end", "backspace", "backspace", "2", "0", ".", "5")
        assert [row.option for row in app.screen.query("#keys Row").results(Row)][:2] == [
            "rank",
            "ms",
        ]
        await until(pilot, lambda: "--fault slow:ms=20.5" in screen_text(app), "the first fault")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "+ slow:ms=20.5" in screen_text(app), "the first fault, kept")
        kind.value = "nan"
        both = "--fault slow:ms=20.5 --fault nan"
        await until(pilot, lambda: both in screen_text(app), "both faults")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "--fault" not in screen_text(app), "no fault")


async def test_who_refuses_is_quoted_and_the_form_stays() -> None:
    starter = Starter("torch-ddp needs torch, [bold]which[/] is not installed here.")
    app = ScreenApp(LaunchScreen(starter))
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(app, pilot)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "[bold]which[/] is not installed" in screen_text(app), "why not")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: len(starter.told) == 2, "another try")
        await until(pilot, lambda: "✗" in screen_text(app), "why not, again")
        await pilot.press("escape")
        await until(pilot, lambda: app.results == [None], "the way back")


async def test_readonly_shows_and_copies_but_starts_nothing() -> None:
    starter = Starter()
    app = ScreenApp(LaunchScreen(starter, readonly=True))
    async with app.run_test(size=(120, 40)) as pilot:
        await begun(app, pilot)
        assert "--readonly" in screen_text(app)
        await pilot.press("ctrl+s", "ctrl+y")
        assert app.copied == ["mgpu-doctor train torch-ddp"]
    assert starter.told == []
