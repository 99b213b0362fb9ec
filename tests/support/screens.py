"""Compares screens as text with golden files. `MGPU_DOCTOR_TEST_RECORD=1` in the environment
rewrites the files; read the diff before committing it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from textual.app import App
from textual.geometry import Size
from textual.pilot import Pilot

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui.app import TopApp
from mgpu_doctor.tui.panel import Panel

GOLDEN = Path(__file__).parents[1] / "recorded/screens"
GOLDEN_WIDTH, GOLDEN_HEIGHT = 120, 40
GOLDEN_SIZE = Size(GOLDEN_WIDTH, GOLDEN_HEIGHT)
SIZES = ((80, 24), (GOLDEN_WIDTH, GOLDEN_HEIGHT), (200, 60))
"""The sizes at which every screen must fit; golden files are of one of them."""
RECORD = "MGPU_DOCTOR_TEST_RECORD"


class Still:
    """A source that always gives the same frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def frame(self, passed: float) -> Frame:
        del passed
        return self._frame

    def close(self) -> None:
        """Holds nothing to release."""


def screen_text(app: App[Any]) -> str:
    """The text on the screen, line by line, without trailing blanks."""
    size = app.size
    console = Console(
        file=io.StringIO(), width=size.width, height=size.height, record=True, legacy_windows=False
    )
    # As Textual's own export_screenshot does.
    console.print(app.screen._compositor.render_update(full=True))
    lines = console.export_text(styles=False).splitlines()
    return "\n".join(line.rstrip() for line in lines[: size.height]) + "\n"


async def until(pilot: Pilot[Any], condition: Callable[[], bool], what: str) -> None:
    """Runs the app until `condition` holds; fails after half a minute or more."""
    for _ in range(3000):
        if condition():
            await pilot.pause()
            return
        await pilot.pause(0.01)
    raise AssertionError(f"never came: {what}\n{screen_text(pilot.app)}")


async def shown(pilot: Pilot[None]) -> TopApp:
    """The app once its first frame is on the screen."""
    app = _app(pilot)
    await until(pilot, lambda: app.frame is not None, "the first frame")
    await pilot.pause()
    screen_text(app)  # what is drawn by now must be drawn anew when it changes
    return app


def _app(pilot: Pilot[None]) -> TopApp:
    app = pilot.app
    assert isinstance(app, TopApp)
    return app


async def check_screen(pilot: Pilot[Any], name: str) -> None:
    """At 120 × 40, waits until the screen equals the golden file `name`; at other sizes, until all
    of it fits. Fails otherwise.

    Panels, lists and the footer are drawn one after the other, and nothing tells when the last one
    is drawn. Therefore the comparison is repeated."""
    if pilot.app.size != GOLDEN_SIZE:
        await until(pilot, lambda: not cut_off(pilot.app), "everything on the screen fits")
        return
    recording = os.environ.get(RECORD)
    golden = None if recording else (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    for _ in range(100 if recording else 3000):
        if screen_text(pilot.app) == golden:
            return
        await pilot.pause(0.01)
    check(name, screen_text(pilot.app))


async def check_sizes(pilot: Pilot[Any], name: str) -> None:
    """Checks the screen of an app at all sizes; the app starts at 120 × 40."""
    await check_screen(pilot, name)
    for size in SIZES:
        if size != GOLDEN_SIZE:
            await pilot.resize_terminal(*size)
            await _resized(pilot, Size(*size))
            await check_screen(pilot, name)


async def _resized(pilot: Pilot[Any], size: Size) -> None:
    await until(pilot, lambda: pilot.app.screen.size == size, f"the size {size}")


def cut_off(app: App[Any]) -> list[str]:
    """Descriptions of what does not fit: lines wider than their panel, widgets beyond the
    screen."""
    wide = [
        f"#{panel.id}: {line.plain}"
        for panel in app.screen.query(Panel)
        if panel.display
        for line in panel._lines
        if line.cell_len > panel.scrollable_content_region.width
    ]
    width = app.size.width
    beyond = [
        f"{widget} ends in column {widget.region.right}"
        for widget in app.screen.children
        if widget.display and widget.region.right > width
    ]
    return wide + beyond


def check(name: str, text: str, width: int = GOLDEN_WIDTH) -> None:
    """At the width of the golden files, fails unless `text` equals the golden file `name`; at other
    widths, fails if a line is wider."""
    if width != GOLDEN_WIDTH:
        assert max(map(cell_len, text.splitlines()), default=0) <= width
        return
    file = GOLDEN / f"{name}.txt"
    if os.environ.get(RECORD):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"differs from {file.name}:\n{text}"
