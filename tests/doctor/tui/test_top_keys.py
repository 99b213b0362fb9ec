"""What keys and the mouse do, through Textual's pilot."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from msgspec import structs
from textual.command import CommandPalette
from textual.pilot import Pilot
from textual.screen import Screen

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.live_jobs import LiveJobs
from mgpu_doctor.live.process_list import ListedProcess
from mgpu_doctor.live.replay import SPEEDS, Replay
from mgpu_doctor.tui import keys
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.frame_thread import FrameMade
from mgpu_doctor.tui.screens.graph_screen import HistoryScreen
from mgpu_doctor.tui.screens.graph_selection import Choice
from mgpu_doctor.tui.screens.rank_screen import RankScreen
from mgpu_doctor.tui.view import Order
from tests.support.frames import EIGHT_GPUS, HEALTHY, NOTHING, STRAGGLER
from tests.support.histories import history
from tests.support.recordings import HEALTHY as HEALTHY_STEP
from tests.support.recordings import SLOW_INPUT, WAITING, recording
from tests.support.screens import Still, screen_text, shown, until

SIZE = (120, 40)


@pytest.mark.parametrize(
    ("key", "does"), [("g", "[      Shorter window."), ("e", "1      Only ranks")]
)
async def test_help_on_a_page_begins_with_its_own_keys(key: str, does: str) -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press(key)
        await until(pilot, lambda: len(app.screen_stack) == 2, "the page")
        await pilot.press("question_mark")
        await until(pilot, lambda: does in screen_text(app), "its first key")


class Late(Still):
    """A frame that is not there until it is allowed."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self.there = Event()

    def frame(self, passed: float) -> Frame:
        self.there.wait()
        return super().frame(passed)


async def test_help_opens_and_closes() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("question_mark")
        await until(pilot, lambda: "the job is never touched" in screen_text(app), "the help")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the screen")
        assert "the job is never touched" not in screen_text(app)


@pytest.mark.parametrize(("replayed", "first"), [(False, "Quit"), (True, "Replay: pause")])
async def test_help_begins_with_what_works_now(
    tmp_path: Path, *, replayed: bool, first: str
) -> None:
    source = (
        Replay(recording(tmp_path / "job", (HEALTHY_STEP, WAITING)))
        if replayed
        else Still(STRAGGLER)
    )
    app = TopApp(source, interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("question_mark")
        await until(pilot, lambda: "─ Keys ─" in screen_text(app), "the help")
        lines = screen_text(app).partition("─ Keys ─")[2].splitlines()
        assert first in lines[1]


async def test_the_findings_have_the_keys_whenever_they_come() -> None:
    """Also when a size comes before the first frame."""
    app = TopApp(Late(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert not app.query("#findings")
        app.screen.set_focus(None)
        assert isinstance(app._frames.source, Late)
        app._frames.source.there.set()
        await shown(pilot)
        await until(pilot, lambda: app.focused is app.query_one("#findings"), "the findings")


async def test_the_palette_finds_what_works_now() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        offered = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Graphs  g", "Filter  /", "Attach  a"} <= offered
        assert not {"Pause  space", "Next job  j"} & offered  # no replay, and no other job
        await pilot.press("ctrl+p", *"graphs", "enter")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen), "the graphs")


async def _find_in_palette(pilot: Pilot[None], page: Screen[Any]) -> set[str]:
    """Opens the palette over a page, as a user does, and returns the titles that it offers."""
    await pilot.press("ctrl+p")
    await until(pilot, lambda: isinstance(pilot.app.screen, CommandPalette), "the palette")
    titles = {command.title for command in pilot.app.get_system_commands(page)}
    await pilot.press("escape")
    await until(pilot, lambda: pilot.app.screen is page, "the page")
    return titles


async def test_the_palette_of_a_replay_pauses_it(tmp_path: Path) -> None:
    app = TopApp(Replay(recording(tmp_path / "job", (HEALTHY_STEP, WAITING))), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        assert "Stop  x" not in await _find_in_palette(pilot, app.screen)
        await pilot.press("ctrl+p", *"pause", "enter")
        await until(pilot, lambda: "replay paused" in screen_text(app), "the pause")


async def test_the_palette_of_a_page_has_its_keys_and_none_that_means_something_else_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    app = TopApp(Still(structs.replace(EIGHT_GPUS, history=history())), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, HistoryScreen), "the graphs")
        offered = await _find_in_palette(pilot, app.screen)
        assert {"Shorter  [", "Overlay  o", "Quit", "Theme  t"} <= offered
        assert not {"Quit  q", "Events  e", "Play last"} & offered
        await pilot.press("ctrl+p", *"shorter", "enter")
        assert isinstance(app.screen, HistoryScreen)
        graphs = app.screen
        await until(pilot, lambda: graphs.choice.window.base == 0, "the shorter window")


async def test_a_job_that_has_ended_is_not_stopped() -> None:
    app = TopApp(Still(HEALTHY), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await until(pilot, lambda: "x stop" in screen_text(app), "the key of a running job")
        app.post_message(FrameMade(structs.replace(HEALTHY, over=True)))
        await until(pilot, lambda: "x stop" not in screen_text(app), "the end of the job")
        assert "Stop  x" not in await _find_in_palette(pilot, app.screen)
        await pilot.press("x")
        await pilot.pause()
        assert [answer.message for answer in app._notifications] == ["The job has ended."]


async def test_enter_shows_cause_evidence_and_fix_of_the_selected_finding() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "Its DataLoader has no workers" in screen_text(app), "why")
        assert "0 workers vs 2 workers  loader workers" in screen_text(app)
        assert "persistent_workers=True" in screen_text(app)
        await pilot.press("escape", "down", "enter")
        await until(pilot, lambda: "A custom loop." in screen_text(app), "the second finding")


async def test_enter_explains_what_the_finding_means_below_what_was_found() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(100, 90)) as pilot:
        await shown(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "How it is measured" in screen_text(app), "the explanation")
        words = " ".join(screen_text(app).replace("│", " ").split())
        found = words.index("loader workers")
        meant = words.index("straggler-input A rank gets its data later than the others")
        assert found < meant < words.index("What to do") < words.index("Thresholds")


async def test_enter_and_y_without_a_job_are_about_a_defective_gpu() -> None:
    assert STRAGGLER.diagnosis is not None
    defect = replace(STRAGGLER.diagnosis.findings[0], code="gpu-lost", title="GPU 3 is lost")
    app = TopApp(Still(structs.replace(NOTHING, hardware=(defect,))), interval=3600)
    async with app.run_test(size=(100, 60)) as pilot:
        await shown(pilot)
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == defect.fixes[0].how, "the fix")
        await pilot.press("enter")
        await until(pilot, lambda: "How it is measured" in screen_text(app), "the explanation")
        assert "! GPU 3 is lost" in screen_text(app)


async def test_a_finding_begins_with_its_fix_which_a_key_copies() -> None:
    assert STRAGGLER.diagnosis is not None
    fix = STRAGGLER.diagnosis.findings[0].fixes[0]
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == fix.how, "the fix")
        app.copy_to_clipboard("")
        await pilot.press("enter")
        await until(pilot, lambda: "y: copy the fix" in screen_text(app), "the finding")
        text = screen_text(app)
        assert text.index(" fix ") < text.index(" why ") < text.index(" evidence ")
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == fix.how, "the fix again")


@pytest.mark.parametrize(
    ("frame", "key", "answer"),
    [
        (STRAGGLER, "space", "This key works in a replay"),
        (STRAGGLER, "j", "There is no other job to show."),
        (HEALTHY, "y", "There is no finding with a fix to copy."),
        (HEALTHY, "enter", "There is no finding to open."),
        (NOTHING, "r", "There are no ranks to sort."),
        (NOTHING, "d", "No job is shown"),
        (NOTHING, "p", "There is no recording to play."),
        (structs.replace(STRAGGLER, history=history()), ("g", "l"), "That is as far as it goes."),
        (STRAGGLER, ("e", "enter"), "⏎ does nothing here. ? shows the keys."),
        (NOTHING, "k", "k does nothing here. ? shows the keys."),
        (HEALTHY, "r", None),
    ],
)
async def test_a_key_that_does_nothing_now_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frame: Frame,
    key: str | tuple[str, str],
    answer: str | None,
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    app = TopApp(Still(frame), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press(*key if isinstance(key, tuple) else (key,))
        if answer is None:
            await until(pilot, lambda: "by own work" in screen_text(app), "the other order")
            assert not [*app._notifications]
        else:
            await pilot.pause()
            assert [answered.message[: len(answer)] for answered in app._notifications] == [answer]


async def test_the_newest_answer_takes_the_place_of_the_one_before_but_not_of_an_error() -> None:
    app = TopApp(Still(HEALTHY), interval=3600)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot)
        app.notify("A frame is missing.", severity="error")
        await pilot.press("y", "enter", "j")
        await until(pilot, lambda: "no other job" in screen_text(app), "the last answer")
        await until(pilot, lambda: len(app.screen.query("Toast")) == 2, "one answer, one error")
        assert "There is no finding" not in screen_text(app)
        assert "A frame is missing." in screen_text(app)


@pytest.mark.parametrize(
    ("pressed", "answer"),
    [
        (["home"], "This is the start of the recording."),
        (["less_than_sign"], "This is the start of the recording."),
        (["end", "right"], "This is the end of the recording."),
        (["plus"] * len(SPEEDS), "There is no faster speed."),
        (["minus"] * len(SPEEDS), "There is no slower speed."),
        (["right", "left", "plus", "minus", "end", "home"], None),
    ],
)
async def test_a_replay_at_its_limits_says_so(
    tmp_path: Path, pressed: list[str], answer: str | None
) -> None:
    replay = Replay(recording(tmp_path / "job", (HEALTHY_STEP, WAITING)))
    replay.pause()
    app = TopApp(replay, interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press(*pressed)
        await pilot.pause()
        said = [each.message for each in app._notifications]
        assert said == ([] if answer is None else [answer])


async def test_the_speed_of_a_paused_replay_is_shown(tmp_path: Path) -> None:
    app = TopApp(Replay(recording(tmp_path / "job", (HEALTHY_STEP, WAITING))), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("space")
        await until(pilot, lambda: "replay paused ─" in screen_text(app), "the pause")
        await pilot.press("plus")
        await until(pilot, lambda: "replay paused x2 ─" in screen_text(app), "the speed")


async def test_a_replay_is_not_stopped(tmp_path: Path) -> None:
    app = TopApp(Replay(recording(tmp_path / "job", (HEALTHY_STEP, WAITING))), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("x")
        await pilot.pause()
        assert [answer.message for answer in app._notifications] == [keys.REPLAYED]


async def test_a_rank_is_selected_and_opened() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        app.query_one("#ranks").focus()
        await pilot.press("7", "3")
        await pilot.pause()
        answers = [answer.message for answer in app._notifications]
        assert answers == ["There is no rank 7."], "the 3 is no key without a meaning"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, RankScreen), "its page")
        await pilot.press("p", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the screen")
        assert app.view.rank is not None
        assert app.view.rank.rank == 2


async def test_the_events_follow_the_job() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("e")
        await until(pilot, lambda: "straggler-input" in screen_text(app), "the finding came")
        await pilot.press("t", "t", "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the screen")


async def test_selection_stays_within_the_findings() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("down", "down", "down")
        assert app.view.finding == 1
        await pilot.press("up", "up", "up")
        assert app.view.finding == 0


async def test_a_click_selects_and_a_double_click_opens() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.click("#findings", offset=(5, 2))
        await until(pilot, lambda: app.view.finding == 1, "the selection")
        await pilot.click("#findings", offset=(5, 2), times=2)
        await until(pilot, lambda: "A custom loop." in screen_text(app), "the finding")


async def test_enter_without_a_finding_does_nothing() -> None:
    for frame in (HEALTHY, NOTHING):
        app = TopApp(Still(frame), interval=3600)
        async with app.run_test(size=SIZE) as pilot:
            await shown(pilot)
            await pilot.press("enter")
            assert len(app.screen_stack) == 1


async def test_sorting_brings_the_rank_with_most_own_work_to_the_top() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)

    def first_rank() -> str:
        lines = screen_text(app).splitlines()
        row = next(i for i, line in enumerate(lines) if "where the time of a step goes" in line)
        return lines[row + 1].replace("▸", "").split()[0]

    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        assert first_rank() == "0"
        await pilot.press("r")
        assert app.view.order is Order.OWN
        await until(pilot, lambda: first_rank() == "2", "rank 2 at the top")


async def test_tab_goes_round_the_panels_that_are_there() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        seen = []
        for _ in range(5):
            assert app.focused is not None
            seen.append(app.focused.id)
            await pilot.press("tab")
        assert set(seen) == {"ranks", "heat", "findings", "details"}  # there is no GPU


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quitting(key: str) -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press(key)
    assert app.return_code == 0


def ends_with(app: TopApp, words: str) -> bool:
    return screen_text(app).rstrip().endswith(words)


async def test_keys_that_the_bottom_has_no_room_for_are_back_when_it_has() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(120, 24)) as pilot:
        await shown(pilot)
        for width, first in ((79, "q quit ? help / filter g"), (82, "q quit ? help ⏎ finding / f")):
            await pilot.resize_terminal(width, 24)
            await until(pilot, partial(ends_with, app, "x stop"), "the last key")
            assert f"\n{first}" in screen_text(app)


def test_a_frame_that_comes_while_the_app_ends_is_no_error() -> None:
    app = TopApp(Still(STRAGGLER))
    app.set_reactive(TopApp.frame, STRAGGLER)
    assert not app.screen_stack
    app.watch_frame(None, STRAGGLER)


async def test_a_narrower_terminal_is_redrawn() -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(200, 60)) as pilot:
        await shown(pilot)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "─Steps─" in screen_text(app), "the narrow screen")
        assert max(map(len, screen_text(app).splitlines())) <= 80


def test_the_newest_frame_supersedes_the_one_that_waits() -> None:
    assert FrameMade(HEALTHY).can_replace(FrameMade(STRAGGLER))


async def test_replay_keys(tmp_path: Path) -> None:
    folder = recording(tmp_path / "r", [WAITING, WAITING, SLOW_INPUT, HEALTHY_STEP])
    app = TopApp(Replay(folder), interval=3600)

    def position() -> tuple[float, float, bool]:
        assert app.frame is not None
        assert app.frame.replay is not None
        replay = app.frame.replay
        return replay.at - replay.start, replay.speed, replay.paused

    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        assert app.frame is not None
        assert app.frame.replay is not None
        span = app.frame.replay.end - app.frame.replay.start
        await pilot.press("space")
        await until(pilot, lambda: position()[2], "the pause")
        start = position()[0]
        await pilot.press("right")
        await until(pilot, lambda: position()[0] == pytest.approx(start + 1), "a second on")
        await pilot.press("left")
        await until(pilot, lambda: position()[0] == pytest.approx(start), "a second back")
        await pilot.press("plus")
        await until(pilot, lambda: position()[1] == 2.0, "double speed")
        for _ in SPEEDS:
            await pilot.press("minus")
        await until(pilot, lambda: position()[1] == SPEEDS[0], "the slowest speed")
        await pilot.press("end")
        await until(pilot, lambda: position()[0] == pytest.approx(span), "the end")
        await until(pilot, lambda: "▸    2" in screen_text(app), "the culprit at the end")
        await pilot.press("less_than_sign")
        await until(pilot, lambda: position()[0] == pytest.approx(0.9 * span), "a tenth back")
        await pilot.press("home")
        await until(pilot, lambda: position()[0] == 0, "the start")
        await pilot.press("full_stop")
        await until(pilot, lambda: position()[0] == pytest.approx(span / 10), "a tenth on")
        await pilot.resize_terminal(80, 24)
        keys = "space pause ←→ 1 s -+ speed <> a tenth q quit"
        await until(pilot, lambda: keys in screen_text(app), "the keys of a replay come first")


async def test_when_a_job_comes_its_findings_are_what_keys_move_in() -> None:
    app = TopApp(Still(NOTHING), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await until(pilot, lambda: getattr(app.focused, "id", "") != "findings", "no findings")
        app.post_message(FrameMade(STRAGGLER))
        await until(pilot, lambda: getattr(app.focused, "id", "") == "findings", "the findings")


def _has_focus(app: TopApp, panel: str) -> bool:
    return app.focused is not None and app.focused.id == panel


async def test_without_a_job_keys_work_in_the_processes_although_gpus_are_shown_first() -> None:
    machine = structs.replace(NOTHING, devices=EIGHT_GPUS.devices)
    app = TopApp(Still(machine), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await until(pilot, lambda: app.query_one("#gpus").display, "the GPUs")
        assert app.focused is None
        process = ListedProcess(7, 1, "ann", ("python",), machine.at)
        alone = structs.replace(machine, processes=(process,))
        for frame, focused in (
            (alone, "processes"),
            (EIGHT_GPUS, "findings"),
            (alone, "processes"),  # as after the recording of the job was deleted
        ):
            app.post_message(FrameMade(frame))
            await until(pilot, partial(_has_focus, app, focused), focused)


async def test_when_a_page_closes_no_hidden_panel_gets_the_focus() -> None:
    machine = structs.replace(NOTHING, devices=EIGHT_GPUS.devices, history=history())
    app = TopApp(Still(machine), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        await pilot.press("question_mark")
        await until(pilot, lambda: len(app.screen_stack) == 2, "the help")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the screen again")
        await until(pilot, lambda: app.focused is not None, "a panel with the focus")
        assert app.focused is not None
        assert app.focused.display, app.focused


class Failing(Still):
    """Gives its frame once, and then fails."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame)
        self._given = False

    def frame(self, passed: float) -> Frame:
        if self._given:
            raise AttributeError("[red]no read_lines")
        self._given = True
        return super().frame(passed)


async def test_a_page_that_cannot_be_loaded_leaves_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mgpu_doctor.tui.screens.events_screen", None)
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot)
        await pilot.press("e")
        await until(pilot, lambda: "It cannot be opened" in screen_text(app), "what is wrong")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 2, "another page")


async def test_an_error_while_it_is_open_leaves_the_screen_and_says_that_it_is_old() -> None:
    app = TopApp(Failing(STRAGGLER), interval=0.5)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shown(pilot)
        await until(
            pilot, lambda: "is not being updated: Attr" in screen_text(app), "what is wrong"
        )
        assert "[red]no" in screen_text(app)
        assert app.frame is not None
        assert app.frame.late > 0
        assert len(app.screen.query("Toast")) == 1


async def test_replay_keys_are_not_offered_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path))
    app = TopApp(LiveJobs(), interval=3600)
    async with app.run_test(size=SIZE) as pilot:
        await shown(pilot)
        text = screen_text(app)
        assert "No job is under observation here." in text
        assert "pause" not in text
        assert "a attach" in text
        await pilot.press("space", "left", "end")
        assert app.frame is not None
        assert app.frame.replay is None


async def test_the_filter_leaves_what_matches() -> None:
    app = TopApp(Still(STRAGGLER))
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        await pilot.press("slash", *"rank:2", "enter")
        await until(pilot, lambda: "1 of 4 ranks shown" in screen_text(app), "one rank is left")
        await pilot.press("R")
        await pilot.pause()
        assert app.view.reversed


async def test_graphs_open_over_the_screen_and_keep_what_was_chosen() -> None:
    app = TopApp(Still(structs.replace(STRAGGLER, history=history())))
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        chosen = []
        for keys in (["right_square_bracket"], []):
            await pilot.press("g")
            await until(pilot, lambda: isinstance(app.screen, HistoryScreen), "graphs are open")
            await pilot.press(*keys)
            assert isinstance(app.screen, HistoryScreen)
            chosen.append(app.screen.choice)
            await pilot.press("escape")
            await until(pilot, lambda: len(app.screen_stack) == 1, "the graphs are closed")
        assert chosen[0] == chosen[1] != Choice()


@pytest.mark.parametrize("key", ["n", "a"])
async def test_an_empty_machine_offers_to_start_and_to_attach(key: str) -> None:
    app = TopApp(Still(NOTHING), readonly=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot)
        assert "attach to a running job" in screen_text(app)
        await pilot.press(key)
        await until(pilot, lambda: len(app.screen_stack) == 2, "a page is open")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1, "the page is closed")


async def test_nothing_is_stopped_by_who_only_looks() -> None:
    app = TopApp(Still(STRAGGLER), readonly=True)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await shown(pilot)
        await pilot.press("x")
        await until(pilot, lambda: keys.READONLY[:20] in screen_text(app), "it says why not")
        assert len(app.screen_stack) == 1
        assert "Stop  x" not in {each.title for each in app.get_system_commands(app.screen)}


@pytest.mark.parametrize(
    ("width", "key", "line"),
    [
        (60, "", "q quit ? help / filter g graphs e events d examine x stop"),
        (80, "", "q quit ? help / filter g graphs e events n new a attach d examine x stop"),
        (60, "e", "0 all kinds, newest ↑ newer ↓ older esc close ? help"),
        (80, "g", "tab measure esc close [ shorter ] longer 0 now ↑ previous ↓ next ? help"),
    ],
)
async def test_keys_for_which_there_is_no_room_are_left_out_the_least_needed_first(
    width: int, key: str, line: str
) -> None:
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(200, 24)) as pilot:
        await shown(pilot)
        await pilot.press(*key)
        await until(pilot, lambda: "palette" in screen_text(app).splitlines()[-1], "all keys")
        await pilot.resize_terminal(width, 24)
        await until(pilot, lambda: screen_text(app).splitlines()[-1] == line, line)
