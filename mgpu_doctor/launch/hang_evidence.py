"""Evidence of a hung job: snapshots of its processes, and torch's flight recorder.

Loaded only for a hang. It loads numpy, whose threads must not exist before `observe` has blocked
the signals that it handles: they would receive them and end the doctor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mgpu_probes.outside import jobs
from mgpu_probes.outside.flight.live_recorders import gather_recorders
from mgpu_probes.outside.job_snapshot import take_snapshot
from mgpu_probes.outside.jobs import RunningJob
from mgpu_probes.outside.jobs.running_jobs import RANK
from mgpu_probes.outside.stacks.stack_reader import Aid

from mgpu_doctor.analysis.stacks.hang_analysis import analyse_hang
from mgpu_doctor.case.box_ranks import position_of
from mgpu_doctor.case.job_snapshots import read_job_snapshot
from mgpu_doctor.case.model import DevicePosition
from mgpu_doctor.launch.notebook import Notebook
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.box import BadBox, read_box
from mgpu_doctor.recording.write import Lines, private_folder, write_json

LOOKS = 3
LOOKS_LIMIT = 8 << 20
FLIGHT_PATIENCE = 15.0
"""Seconds; torch takes up to 7 to look up call sites for the first time."""
MOST = 64
"""Boxes that are read."""


def longest_step(boxes: Path) -> float | None:
    """The 99th percentile of the steps on record, in seconds; None where there are none."""
    walls = []
    for path in list(boxes.glob("*.box"))[:MOST]:
        try:
            walls.append(read_box(path).steps["wall_ns"] * 1e-9)
        except (BadBox, OSError):
            continue
    known = np.concatenate(walls) if walls else np.empty(0)
    return float(np.quantile(known, 0.99)) if len(known) else None


def keep(notebook: Notebook, pid: int, unchanged: Callable[[], bool]) -> bool:
    """Looks at the job of this process some times; whether it stands and somebody waits. Then what
    was seen is recorded, with what torch recorded of the collectives.

    `unchanged`: waits until it is time for the next look; False once the job moves again.
    """
    job = jobs.find(pid)
    if job is None or notebook.folder is None or notebook.boxes is None:
        return False
    job = _numbered(job, notebook.boxes)
    sockets = _sockets(job, notebook.boxes)
    aids = {pid: Aid(worker_socket=path) for pid, path in sockets.items()}
    lines = []
    for number in range(LOOKS):
        if number and not unchanged():
            return False
        lines.append(take_snapshot(job, aids=aids))
    seen = [snapshot for line in lines if (snapshot := read_job_snapshot(line)) is not None]
    hang = analyse_hang(seen, _positions(notebook.boxes))
    if hang is None or not hang.waiting:
        return False  # of a rank that nobody waits for, nobody can tell what it may wait for
    host = notebook.folder / layout.HOSTS / notebook.host
    book = Lines(host / layout.LOOKS, LOOKS_LIMIT, samples=False)
    for line in lines:
        notebook.guarded(partial(book.append, line))
    for form in gather_recorders(job, sockets, timeout=FLIGHT_PATIENCE).forms:
        notebook.guarded(partial(_write, host / layout.FLIGHT, form))
    return True


def _numbered(job: RunningJob, boxes: Path) -> RunningJob:
    """The job with the numbers that ranks tell in their boxes alone, as those of Ray Train do."""
    if all(rank.rank is not None for rank in job.ranks):
        return job
    rank_of_pid = {}
    for path in list(boxes.glob("*.box"))[:MOST]:
        with suppress(BadBox, OSError):
            identity = read_box(path).identity
            rank_of_pid[identity.pid] = identity.rank
    numbered = (
        replace(process, rank=rank_of_pid.get(process.pid))
        if process.role == RANK and process.rank is None
        else process
        for process in job.processes
    )
    return replace(job, processes=tuple(numbered))


def _positions(boxes: Path) -> dict[int, DevicePosition]:
    """Pid -> how far its device got, of the ranks for which that is known."""
    positions = {}
    for path in list(boxes.glob("*.box"))[:MOST]:
        with suppress(BadBox, OSError):
            box = read_box(path)
            position = position_of(box)
            if isinstance(position, DevicePosition):
                positions[box.identity.pid] = position
    return positions


def _sockets(job: RunningJob, boxes: Path) -> dict[int, str]:
    """pid -> where an instrumented rank answers."""
    sockets = {rank.pid: next(boxes.glob(f"*.{rank.pid}.*.sock"), None) for rank in job.ranks}
    return {pid: str(path) for pid, path in sockets.items() if path is not None}


def _write(folder: Path, form: Mapping[str, Any]) -> None:
    write_json(private_folder(folder) / f"{form['pid']}.json", form)
