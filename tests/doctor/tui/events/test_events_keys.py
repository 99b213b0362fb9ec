"""What keys and the mouse do on the page of events, through Textual's pilot."""

from __future__ import annotations

import pytest
from msgspec import structs
from textual.app import App

from mgpu_doctor.live.frame import Frame, Position
from mgpu_doctor.report.job_events import Kind
from mgpu_doctor.tui.screens.events_screen import Choice, EventsScreen, Sheet, timeline
from tests.support.eventful_job import AT, EVENTFUL, case, event, frame, rank

FALLEN = structs.replace(EVENTFUL, at=AT + 60)
MANY = frame(
    case([rank(0, events=tuple(event("note", step, 0.0, f"note {step}") for step in range(200)))])
)


class Host(App[None]):
    """Nothing but the page."""

    def __init__(self, frame: Frame | None = EVENTFUL) -> None:
        super().__init__()
        self.page = EventsScreen(frame)

    def on_mount(self) -> None:
        self.push_screen(self.page)

    def text(self) -> str:
        sheet = self.page.query_one(Sheet)
        return "\n".join(sheet.render_line(y).text.rstrip() for y in range(sheet.size.height))


async def test_numbers_choose_kinds_and_0_all_of_them() -> None:
    app = Host()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "straggler-input" in app.text()
        await pilot.press("7")
        assert app.page.choice.only == {Kind.GPUS}
        assert "was lost" in app.text()
        assert "straggler-input" not in app.text()
        await pilot.press("5")
        assert "ValueError" in app.text()
        assert "was lost" in app.text()
        await pilot.press("7")
        assert "was lost" not in app.text()
        await pilot.press("0")
        assert app.page.choice == Choice()
        assert "straggler-input" in app.text()


async def test_enter_goes_to_the_marked_event_of_a_replay() -> None:
    wanted: list[float] = []

    class Player(Host):
        def on_events_screen_wanted(self, message: EventsScreen.Wanted) -> None:
            wanted.append(message.at)

    position = Position(AT - 600, AT, AT, 1.0, False)
    known = timeline(structs.replace(EVENTFUL, replay=position))
    for shown, moments in ((EVENTFUL, []), (structs.replace(EVENTFUL, replay=position), [2])):
        app = Player(shown)
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.pause()
            await pilot.press("down", "down", "enter")
            await pilot.pause()
            assert wanted == [known.events[place].at for place in moments]
            assert isinstance(app.screen, EventsScreen) is not bool(moments)


async def test_scrolling_by_keys_and_wheel() -> None:
    app = Host(MANY)

    def first() -> str:
        return app.text().splitlines()[2].split()[-1]

    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert first() == "199"
        await pilot.press("down", "down", "up")
        assert first() == "198"
        await pilot.press("pagedown")
        assert first() == "177"
        await pilot.press("pageup")
        assert first() == "198"
        await pilot.press("end")
        assert "was started" in app.text().splitlines()[2]
        await pilot.press("home")
        assert first() == "199"
        app.page.query_one(Sheet).post_message(Sheet.Wheel(3))
        await pilot.pause()
        assert first() == "196"


async def test_new_frames_are_followed() -> None:
    app = Host()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "30 s ago" in app.text()
        app.page.show(FALLEN)
        assert "1 min ago" in app.text()
        assert "30 s ago" not in app.text()
        app.page.show(MANY)
        assert "note 199" in app.text()


@pytest.mark.parametrize("key", ["escape", "e", "q"])
async def test_it_closes(key: str) -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        assert app.screen is not app.page


async def test_before_any_frame_it_is_empty_and_a_resize_draws_anew() -> None:
    app = Host(None)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("down", "1", "pagedown")
        assert not app.text().strip()
        app.page.show(EVENTFUL)
        await pilot.press("0")
        assert "straggler-input" in app.text()
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert max(map(len, app.text().splitlines())) <= 80
        assert "straggler-input" in app.text()
