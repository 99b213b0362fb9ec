"""A screen at rest is told from what its event loop has to do. Textual's own pilot asks whether
the process uses little CPU, which is also true of one that a busy machine keeps waiting."""

from __future__ import annotations

import asyncio

import pytest
import textual.app
import textual.pilot

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
