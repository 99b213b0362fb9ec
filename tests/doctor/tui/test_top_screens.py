"""The screen at its usual sizes, and one frame as text, against golden files."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from rich.cells import cell_len
from rich.text import Text

from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.jobs import greeting
from mgpu_doctor.tui.once import render
from mgpu_doctor.tui.panels import header
from tests.support import diagnoses, frames, multi_host
from tests.support.frames import STRAGGLER
from tests.support.gpus import busy_waiting
from tests.support.screens import (
    GOLDEN_SIZE,
    Still,
    check,
    check_sizes,
    cut_off,
    screen_text,
    shown,
)

ALL = {**frames.ALL, "four-hosts": multi_host.FOUR_HOSTS}
ON_GPUS = diagnose(busy_waiting())
SCREENS = {
    "busy-waiting": frames.frame(ON_GPUS, devices=ON_GPUS.case.device_samples[-1], at=2000.0),
    **ALL,
    "64-ranks-old": frames.BUSY,
}


@pytest.fixture(autouse=True)
def _of_a_known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the greeting tells of this Python and of earlier jobs."""
    monkeypatch.setattr(greeting, "_frameworks", lambda: ("torch 2.13.0",))
    monkeypatch.setattr(greeting, "latest", lambda: None)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", SCREENS)
async def test_screen(name: str) -> None:
    frame = SCREENS[name]
    app = TopApp(Still(frame), interval=frame.interval or 3600)
    async with app.run_test(size=GOLDEN_SIZE) as pilot:
        await shown(pilot)
        await check_sizes(pilot, name)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ALL)
def test_one_frame_as_text(name: str, width: int) -> None:
    text = render(ALL[name], width=width, colour=False)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert text.endswith("\n")
    assert "\x1b" not in text
    check(f"once-{name}", text, width)


def test_markup_of_others_is_only_text() -> None:
    text = render(ALL["hostile"], width=400, colour=False)
    assert "[bold red]x[/]" in text
    coloured = render(ALL["hostile"], width=400, colour=True)
    assert "\x1b]0;" not in coloured
    assert "\x1b[2J" not in coloured
    assert "\u202e" not in coloured


def test_without_colour_the_culprit_and_the_phases_can_be_read() -> None:
    lines = render(STRAGGLER, width=120, colour=False).splitlines()
    culprit = next(line for line in lines if line.startswith("▸"))
    assert culprit.split()[1] == "2"
    assert "iiiiiiii" in culprit
    assert "! straggler-input" in "\n".join(lines)


async def test_light_and_without_colour_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = []
    for plain, key in ((False, ""), (False, "t"), (True, "")):
        if plain:
            monkeypatch.setenv("NO_COLOR", "1")
        app = TopApp(Still(STRAGGLER), interval=3600)
        async with app.run_test(size=(120, 40)) as pilot:
            await shown(pilot)
            if key:
                await pilot.press(key)
                assert app.theme == "textual-light"
            texts.append(screen_text(app))
    assert texts[0] == texts[1] == texts[2]


def test_every_diagnosis_can_be_drawn() -> None:
    for diagnosis in diagnoses.ALL.values():
        for width in (20, 40, 79, 300):
            text = render(frames.frame(diagnosis), width=width, colour=True)
            assert "mgpu-doc" in text


async def test_a_panel_whose_lines_are_cut_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header, "host_lines", lambda *_: (Text("x" * 90),))
    app = TopApp(Still(STRAGGLER), interval=3600)
    async with app.run_test(size=(80, 24)) as pilot:
        await shown(pilot)
        assert cut_off(app) == [f"#host: {'x' * 90}"]
