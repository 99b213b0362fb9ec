"""Kills writers of black boxes and checks what is left: `python -m benchmarks.blackbox_kills`.

Each child writes as fast as it can and is killed with SIGKILL at a random moment, some while the
box is being created. Everything it had committed must be whole. Prints one JSON object; exit code 1
where a committed record was bad.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.inprocess.boxfile import Sizes
from mgpu_probes.inprocess.device_clock import DeviceStep

from mgpu_doctor.recording.box import Box, read_box

LONGEST_LIFE = 0.05
"""Seconds. Long enough for some thousand records and several doublings of the history."""


def write_for_ever(folder: Path) -> None:
    """Steps whose every field follows from their number, and everything else in between."""
    writer = Writer.open(folder, sizes=Sizes(history=16, window_ns=50_000))
    writer.state(layout.RUNNING)
    number = 0
    while True:
        phases = (float(number),) * len(layout.PHASES)
        writer.step(time.monotonic_ns(), 1, number, 0, phases, 1, number, float(number))
        if number % 4 == 0:
            times = (number * 1_000_000_000,) * len(layout.PHASES)
            writer.device_step(DeviceStep(number + 1, number, times, number, number))
        if number % 16 == 0:
            writer.event(layout.NOTE, number, number, number, float(number), str(number))
        if number % 64 == 0:
            writer.birth({"number": number, "text": "x" * (number % 500)})
            writer.words[layout.NOW_SITE // 8] = writer.site(f"site {number}")
            writer.words[layout.NOW_SINCE // 8] = time.monotonic_ns()
            writer.identify(number, number, number)
        number += 1


def complaints(box: Box) -> list[str]:
    """What is wrong with a box of `write_for_ever`."""
    steps, times, wrong = box.steps, box.device_times, []
    if times is None or not (
        np.all(times["step_seq"] == times["seq"] * 4 - 3)
        and np.all(times["wall_ns"] + 1 == times["step_seq"])
    ):
        wrong.append("device times that nobody wrote")
    if box.lost:
        wrong.append(f"{box.lost} step records lost")
    if len(steps) and not (
        np.all(np.diff(steps["seq"]) == 1)
        and np.all(steps["step"] + 1 == steps["seq"])
        and np.all(steps["phases"] == steps["step"][:, None].astype("f4"))
        and np.all(steps["tokens"] == steps["step"])
    ):
        wrong.append("a step record is not what was written")
    events = [event.step for event in box.events]
    if any(later - earlier != 16 for earlier, later in pairwise(events)):
        wrong.append("an event is missing")
    if any(event.text != str(event.step) for event in box.events):
        wrong.append("an event is not what was written")
    windows = box.history
    if np.any(windows["wall_ns"] != windows["micro_batches"]) or np.any(
        np.diff(windows["end_ns"]) <= 0
    ):
        wrong.append("a window of the history is not the sum of its steps")
    newest = int(steps["seq"][-1]) if len(steps) else 0
    if not windows["micro_batches"].sum() <= newest:
        wrong.append("the history counts more steps than there were")
    if box.damage and box.damage != ("the process ended while it changed its rank",):
        wrong.append("; ".join(box.damage))
    identity = box.identity
    if len({identity.rank, identity.local_rank, identity.world_size} - {None}) > 1:
        wrong.append("the ranks are of different moments")
    return wrong


def kill_writer(folder: Path, life: float) -> Box | None:
    """The box of a child killed `life` seconds after its fork; None where it had none yet."""
    child = os.fork()
    if child == 0:
        try:
            write_for_ever(folder)
        finally:
            os._exit(1)
    time.sleep(life)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the writer ended by itself")
    boxes = list(folder.glob("*.box"))
    box = read_box(boxes[0]) if boxes else None
    for path in folder.iterdir():
        path.unlink()
    return box


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", help="where to put the boxes (default: a temporary folder)")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    lives = random.Random(seed)
    wrong: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for _ in range(arguments.kills):
            box = kill_writer(Path(folder), lives.uniform(0.0, LONGEST_LIFE))
            if box is None:
                counts["before_the_box_was_complete"] += 1
                continue
            counts["records"] += len(box.steps) + box.overwritten
            counts["records_checked"] += len(box.steps)
            counts["events_checked"] += len(box.events)
            counts["doublings"] += (box.history_window_ns or 50_000).bit_length() - 16
            counts["identity_torn"] += bool(box.damage)
            wrong.update(complaints(box))
    result = {"kills": arguments.kills, "seed": seed, **counts, "wrong": dict(wrong)}
    print(json.dumps(result))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
