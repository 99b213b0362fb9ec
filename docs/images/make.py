"""Draws the README's pictures of `top`: a machine without a job, a straggler, and a recorded hang.

python -m docs.images.make

GPUs, processes and the straggler's job are made up; the hang is a replay of a recording of a real
job on CPUs.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
import tempfile
from pathlib import Path

from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceSample
from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.frame_source import Source
from mgpu_doctor.live.process_list import ListedProcess
from mgpu_doctor.live.replay import Replay
from mgpu_doctor.tui.app import TopApp
from tests.support import frames, histories
from tests.support.frames import GIB, gpu
from tests.support.screens import Still

HERE = Path(__file__).parent
HANG = HERE.parents[1] / "tests/recorded/recordings/hang.tar.xz"
SIZE = (110, 34)
NOW = histories.ENDED


def machine() -> Frame:
    """A machine with eight GPUs, and the processes of two people on it."""
    train = ("python", "train.py", "--config", "large.yaml")
    processes = (
        *(
            ListedProcess(4000 + index, 1, "ann", train, NOW - 8000, 1.2, 9 * GIB, (index,), held)
            for index, held in enumerate((61 * GIB, 60 * GIB, 62 * GIB, 60 * GIB))
        ),
        ListedProcess(7110, 1, "bob", ("jupyter-lab",), NOW - 400_000, 0.02, GIB, (6,), 7 * GIB),
    )
    sample = histories.devices(histories.SECONDS)
    held = {process.gpus[0]: process for process in processes}
    used = tuple(
        structs.replace(
            device, pids=(held[device.index].pid,), memory_used=held[device.index].gpu_memory
        )
        if device.index in held
        else structs.replace(device, utilization=0.0, memory_used=GIB, power_watts=72.0)
        for device in sample.devices
    )
    return Frame(
        at=NOW,
        source="live",
        devices=structs.replace(sample, devices=used),
        host=structs.replace(frames.HOST, at=NOW),
        processes=processes,
        history=histories.history(),
    )


def straggler() -> Frame:
    """A job on four GPUs with a slow rank."""
    ranks = tuple(gpu(index, power_watts=540.0 + 9 * index) for index in range(4))
    return structs.replace(frames.STRAGGLER, devices=DeviceSample(frames.AT, ranks))


async def draw(source: Source, name: str, *keys: str) -> None:
    app = TopApp(source, interval=1.0)
    async with app.run_test(size=SIZE) as pilot:
        while app.frame is None:
            await pilot.pause(0.1)
        await pilot.press(*keys)
        await pilot.pause(2)
        picture = app.export_screenshot(title="mgpu-doctor top", simplify=True)
    (HERE / f"{name}.svg").write_text(picture, encoding="utf-8")


async def draw_all(folder: Path) -> None:
    with tarfile.open(HANG) as packed:
        packed.extractall(folder, filter="data")
    await draw(Still(machine()), "machine")
    await draw(Still(straggler()), "top")
    await draw(Replay(folder / "hang"), "hang", "space", "end")


if __name__ == "__main__":
    os.environ["COLORTERM"] = "truecolor"  # whatever the terminal of this command has
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw_all(Path(folder)))
