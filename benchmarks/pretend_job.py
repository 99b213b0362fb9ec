"""A live job for measuring the doctor itself: ranks that only write black boxes, at a step rate.

    python -m benchmarks.pretend_job FOLDER --ranks 4 --steps-per-second 20 --seconds 60

FOLDER becomes a recording. The rank named by --slow loads its input 20 ms longer than the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from math import nan
from multiprocessing import get_context
from pathlib import Path

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside.processes import find_start_ticks

from mgpu_doctor.recording.layout import END, INFO, SCHEMA, boxes

OWN = {"input": 0.002, "forward": 0.012, "backward": 0.018, "optimizer": 0.004}
SLOW_BY = 0.020
STEPS_BEFORE = 2000
"""Records that each box holds from the start, so that the ring is as full as after some minutes."""


def prepare(folder: Path) -> None:
    """Makes `folder` the recording of a job whose first process is this one."""
    folder.mkdir(parents=True)
    info = {
        "schema": SCHEMA,
        "id": folder.name,
        "kind": "run",
        "command": ["torchrun", "pretend.py"],
        "host": os.uname().nodename,
        "started": time.time(),
        "probe": True,
        "job_pid": os.getpid(),
        "job_start_ticks": find_start_ticks(os.getpid()),
    }
    (folder / INFO).write_text(json.dumps(info))


def rank_main(folder: Path, rank: int, args: argparse.Namespace) -> None:
    writer = Writer.open(folder, rank=rank, local_rank=rank, world_size=args.ranks)
    writer.birth({"framework": "torch", "strategy": "ddp"})
    writer.state(layout.RUNNING)
    chance = random.Random(rank)
    period = 1 / args.steps_per_second
    until = time.monotonic() + args.seconds
    last = time.monotonic_ns() - round(STEPS_BEFORE * period * 1e9)
    for number in range(STEPS_BEFORE + round(args.seconds * args.steps_per_second)):
        own_seconds = {name: value * chance.uniform(0.97, 1.03) for name, value in OWN.items()}
        own_seconds["input"] += SLOW_BY * (rank == args.slow)
        values = [own_seconds.get(name, nan) for name in layout.PHASES]
        values[layout.WAIT] = max(0.0005, period - sum(own_seconds.values()))
        wall = round(period * 1e9)
        last += wall
        time.sleep(max(0.0, last * 1e-9 - time.monotonic()))
        writer.step(last, wall, number, 0, values, 8, 0, nan, 0.0, number + 1, 1, 1)
        if time.monotonic() > until:
            break
    writer.state(layout.ENDED_CLEAN)
    writer.leave(0)
    writer.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow", type=int, default=2, help="which rank is slow; -1: none")
    parser.add_argument("--steps-per-second", type=float, default=15.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args(arguments)
    prepare(args.folder)
    place = boxes(args.folder, os.uname().nodename)
    processes = [
        get_context("fork").Process(target=rank_main, args=(place, rank, args), daemon=True)
        for rank in range(args.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    end = {"exit_code": 0, "signal": None, "ended": time.time(), "asked": None}
    (args.folder / END).write_text(json.dumps(end))


if __name__ == "__main__":
    main()
