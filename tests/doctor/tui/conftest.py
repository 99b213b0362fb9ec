"""How the tests of screens wait and draw.

A screen is idle when its event loop has nothing to do. Textual's own pilot asks whether the
process uses little CPU, which is also true of one that a busy machine keeps waiting. A screen is
drawn, as a whole, when a test reads it: without a terminal Textual would draw each change and drop
the result.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import textual.app
import textual.pilot
from textual._compositor import Compositor

LOOKS = 500
"""20 ms apart, which is longer than a screen's own turn to draw (1/60 s)."""


async def _at_rest(min_sleep: float = 0) -> None:
    """Until nothing is ready to run at a look."""
    del min_sleep
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    for _ in range(LOOKS):
        await asyncio.sleep(0.02)
        if not ready:
            return


@pytest.fixture(autouse=True)
def _rest(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", _at_rest)


_draw = Compositor.render_update


def _draw_if_full(screen: Compositor, full: bool = False, **options: Any) -> object:
    """What a test reads, which asks for all of the screen; no update of a part."""
    if full:
        return _draw(screen, full=True, **options)
    screen._dirty_regions.clear()
    return None


@pytest.fixture(autouse=True)
def _draw_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compositor, "render_update", _draw_if_full)


@pytest.fixture(autouse=True)
def _colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """All colours, whatever the terminal of the tests has."""
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", "truecolor")
