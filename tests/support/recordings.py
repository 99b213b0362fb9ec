"""Writes small recordings of pretend jobs with the real black-box writer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from math import nan
from pathlib import Path
from typing import Any

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside.processes import find_start_ticks

from mgpu_doctor.recording.layout import END, INFO, SCHEMA, boxes

STARTED = 1_790_000_000
SECOND = 1_000_000_000
BIRTH = {"framework": "torch", "strategy": "ddp"}
HEALTHY = {"input": 0.002, "forward": 0.012, "backward": 0.018, "wait": 0.001, "optimizer": 0.004}
SLOW_INPUT = {**HEALTHY, "input": 0.031}
WAITING = {**HEALTHY, "wait": 0.030}


def recording(
    folder: Path,
    ranks: Sequence[Mapping[str, float]],
    *,
    steps: int = 200,
    live: bool = False,
    birth: Mapping[str, Any] = BIRTH,
) -> Path:
    """Writes a recording whose ranks took `steps` equal steps of the given phases (seconds).
    `live`: the job has not ended, and its first process is this one. `birth`: each rank's
    metadata."""
    host = os.uname().nodename
    info = {
        "schema": SCHEMA,
        "id": folder.name,
        "kind": "run",
        "command": ["torchrun", "train.py"],
        "cwd": "/nowhere",
        "host": host,
        "started": STARTED,
        "probe": True,
        "job_pid": os.getpid(),
        "job_start_ticks": find_start_ticks(os.getpid()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INFO).write_text(json.dumps(info))
    if not live:
        end = {"exit_code": 0, "signal": None, "ended": STARTED + 60, "asked": None}
        (folder / END).write_text(json.dumps(end))
    for number, phases in enumerate(ranks):
        place, world = boxes(folder, host), len(ranks)
        with closing(
            Writer.open(place, rank=number, local_rank=number, world_size=world)
        ) as writer:
            writer.birth(birth)
            _train(writer, phases, steps)
    return folder


def _train(writer: Writer, phases: Mapping[str, float], steps: int) -> None:
    wall = round(sum(phases.values()) * SECOND)
    values = [phases.get(name, nan) for name in layout.PHASES]
    for number in range(steps):
        writer.step(
            SECOND + (number + 1) * wall, wall, number, 0, values, 8, 0, nan, 0.0, number + 1, 1, 1
        )
    writer.state(layout.ENDED_CLEAN)
    writer.leave(0)
