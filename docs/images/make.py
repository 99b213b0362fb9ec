"""Draws docs/images/top.svg: `top --replay` of a recording, as the README shows it.

python docs/images/make.py RECORDING
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mgpu_doctor.live.replay import Replay
from mgpu_doctor.tui.app import TopApp


async def draw(recording: Path, target: Path) -> None:
    app = TopApp(Replay(recording), interval=1.0)
    async with app.run_test(size=(110, 28)) as pilot:
        await pilot.press("space", "end")
        for _ in range(50):
            await pilot.pause(0.1)
            if app.frame is not None and app.frame.diagnosis is not None:
                break
        await pilot.pause(1)
        target.write_text(app.export_screenshot(title="mgpu-doctor top"), encoding="utf-8")


asyncio.run(draw(Path(sys.argv[1]), Path(__file__).with_name("top.svg")))
