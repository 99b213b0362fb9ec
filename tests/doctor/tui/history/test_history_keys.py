"""What keys and the mouse do on the page of graphs, through Textual's pilot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs
from textual.app import App

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.screens.graph_screen import NOTHING_YET, Graphs, HistoryScreen
from mgpu_doctor.tui.screens.graph_selection import Kind, Subject, Window
from tests.support import histories
from tests.support.histories import ENDED, history
from tests.support.screens import Still, screen_text, shown, until


def frame() -> Frame:
    """The newest one, with the hour before it."""
    devices = histories.devices(histories.SECONDS - 1)
    return Frame(ENDED, "live", devices=devices, history=history())


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Host(App[None]):
    """Nothing but the page."""

    def __init__(self, shown: Frame | None) -> None:
        super().__init__()
        self.page = HistoryScreen(shown)

    def on_mount(self) -> None:
        self.push_screen(self.page)

    def text(self) -> str:
        graphs = self.page.query_one(Graphs)
        return "\n".join(graphs.render_line(y).text.rstrip() for y in range(graphs.size.height))


async def test_brackets_choose_the_time_base() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        assert "5 min to 15:13:20" in app.text()
        await pilot.press("right_square_bracket")
        assert "15 min to 15:13:20" in app.text()
        await pilot.press("left_square_bracket", "left_square_bracket", "left_square_bracket")
        assert app.page.choice.window == Window(0)
        await pilot.press(*["right_square_bracket"] * 9)
        assert "6 h to 15:13:20" in app.text()


async def test_pan_and_follow() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("h", "shift+left")
        assert "5 min to 15:10:50, 2 min 30 s ago; 0: now" in app.text()
        app.page.show(structs.replace(frame(), history=replace(history(), at=ENDED + 60)))
        assert "5 min to 15:10:50, 3 min 30 s ago" in app.text()
        await pilot.press("l")
        assert "to 15:12:05" in app.text()
        await pilot.press("0")
        assert app.page.choice.window.end is None
        assert "5 min to 15:14:20" in app.text()


async def test_up_and_down_go_through_the_subjects_and_tab_through_measures() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        assert "all GPUs  utilization" in app.text()
        await pilot.press("tab", "tab")
        assert "all GPUs  power" in app.text()
        await pilot.press("shift+tab")
        assert "all GPUs  memory" in app.text()
        await pilot.press("down")
        assert app.page.choice.subject == Subject(Kind.GPU, 0)
        assert app.text().splitlines()[0].startswith("GPU 0  2 of 16")
        await pilot.press("up", "up")
        assert app.page.choice.subject == Subject(Kind.RANK, 3)


async def test_a_click_opens_a_gpu_and_then_picks_a_measure() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        lines = app.text().splitlines()
        row = next(y for y, line in enumerate(lines) if "2 GPU 2" in line)
        await pilot.click(Graphs, offset=(50, row))
        assert app.page.choice.subject is None, "a click on the lines selects none of them"
        await pilot.click(Graphs, offset=(lines[row].index("GPU 2"), row))
        assert app.page.choice.subject == Subject(Kind.GPU, 2)
        lines = app.text().splitlines()
        await pilot.click(Graphs, offset=(3, _line(lines, "temperature")))
        assert app.page.choice.measured(history()).name == "temperature"
        assert app.page.choice.subject == Subject(Kind.GPU, 2)


async def test_o_shows_gpus_one_below_the_other() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        assert app.text().count("100 %┤") == 1
        await pilot.press("o")
        assert app.text().count("100 %┤") == 8
        await pilot.press("o")
        assert app.text().count("100 %┤") == 1
        await pilot.press("down")
        assert "overlay" not in {
            binding.binding.action for binding in app.page.active_bindings.values()
        }


async def test_the_wheel_zooms() -> None:
    app = Host(frame())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        graphs = app.page.query_one(Graphs)
        graphs.post_message(Graphs.Wheel(1, 0.5))
        await pilot.pause()
        assert "15 min to 15:13:20" in app.text()


async def test_page_keys_show_the_graphs_that_do_not_fit() -> None:
    many = replace(
        history(),
        devices={(None, index): history().devices[None, index % 8] for index in range(64)},
    )
    app = Host(structs.replace(frame(), history=many))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("pagedown", "pagedown", "pagedown", "pagedown", "pagedown")
        assert "GPU 63" in app.text()
        await pilot.press("pageup", "pageup", "pageup", "pageup", "pageup")
        assert app.page.choice.scrolled == 0


@pytest.mark.parametrize("key", ["escape", "g", "q"])
async def test_it_closes(key: str) -> None:
    app = Host(frame())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert app.screen is not app.page


async def test_the_way_back_is_shown_on_a_narrow_screen() -> None:
    app = TopApp(Still(frame()), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        await pilot.press("g")
        await until(pilot, lambda: "esc close" in screen_text(app), "the way back")


async def test_without_a_history_it_says_so_and_keys_do_nothing() -> None:
    app = Host(structs.replace(frame(), history=None))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("h", "tab", "down", "0", "right_square_bracket")
        assert app.text().startswith(NOTHING_YET)


async def test_a_narrower_terminal_is_redrawn() -> None:
    app = Host(frame())
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert max(map(len, app.text().splitlines())) <= 80
        assert "GPU 7" in app.text()


async def test_the_page_before_any_frame_is_empty() -> None:
    app = Host(None)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("tab")
        assert not app.text().strip()
        app.page.show(frame())
        assert "GPU 0" in app.text()


def _line(lines: list[str], begins: str) -> int:
    return next(place for place, line in enumerate(lines) if line.startswith(begins))
