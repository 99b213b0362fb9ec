"""Evidence of a hung job: snapshots of its processes, and torch's flight recorder.

Imported only for a hang, because it imports numpy: numpy's threads must not exist before `observe`
has blocked the signals it handles, or they would receive them and end the doctor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from mgpu_doctor.launch.run_recording import RunRecording
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.box import BadBox, read_box
from mgpu_doctor.recording.write import Lines, private_folder, write_json

LOOKS = 3
LOOKS_LIMIT = 8 << 20
FLIGHT_PATIENCE = 15.0
"""Seconds; torch takes up to 7 to look up call sites for the first time."""
MOST = 64
"""The most boxes that are read."""


def longest_step(folders: Sequence[Path]) -> float | None:
    """Returns the 99th percentile of the step times in the boxes of these folders, in seconds; None
    without steps."""
    walls = []
    for path in _list_boxes(folders):
        try:
            walls.append(read_box(path).steps["wall_ns"] * 1e-9)
        except (BadBox, OSError):
            continue
    known = np.concatenate(walls) if walls else np.empty(0)
    return float(np.quantile(known, 0.99)) if len(known) else None


def keep(recording: RunRecording, pid: int, unchanged: Callable[[], bool]) -> bool:
    """Samples the stacks of this process's job several times; returns whether it hangs with ranks
    waiting. If so, records the snapshots and torch's flight recorder. If other nodes write into the
    recording, keeps the snapshots anyway: their ranks may wait for ranks of this one.

    `unchanged`: waits until the next sample is due; returns False once the job makes progress. It
    is asked after the last sample, too: another node may have ended the job meanwhile, and a rank
    that ends looks as if it had moved.
    """
    job = jobs.find(pid)
    if job is None or recording.folder is None or recording.boxes is None:
        return False
    folders = recording.list_box_folders()
    boxes = _list_boxes(folders)
    job = _numbered(job, boxes)
    sockets = _sockets(job, folders)
    aids = {pid: Aid(worker_socket=path) for pid, path in sockets.items()}
    lines = []
    for _ in range(LOOKS):
        lines.append(take_snapshot(job, aids=aids))
        if not unchanged():
            return False
    seen = [snapshot for line in lines if (snapshot := read_job_snapshot(line)) is not None]
    hang = analyse_hang(seen, _positions(boxes))
    waits = hang is not None and bool(hang.waiting)
    host = recording.folder / layout.HOSTS / recording.host
    file = Lines(host / layout.LOOKS, LOOKS_LIMIT, samples=False)
    for line in lines if waits or recording.part != recording.folder else ():
        recording.guarded(partial(file.append, line))
    if not waits:
        return False  # no rank waits for another one here: ranks of other nodes may wait for these
    for form in gather_recorders(job, sockets, timeout=FLIGHT_PATIENCE).forms:
        recording.guarded(partial(_write, host / layout.FLIGHT, form))
    return True


def _list_boxes(folders: Sequence[Path]) -> list[Path]:
    return [path for folder in folders for path in folder.glob("*.box")][:MOST]


def _numbered(job: RunningJob, boxes: Sequence[Path]) -> RunningJob:
    """Returns the job with rank numbers that only the boxes contain, as with Ray Train."""
    if all(rank.rank is not None for rank in job.ranks):
        return job
    rank_of_pid = {}
    for path in boxes:
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


def _positions(boxes: Sequence[Path]) -> dict[int, DevicePosition]:
    """Returns pid -> device position, for the ranks where it is known."""
    positions = {}
    for path in boxes:
        with suppress(BadBox, OSError):
            box = read_box(path)
            position = position_of(box)
            if isinstance(position, DevicePosition):
                positions[box.identity.pid] = position
    return positions


def _sockets(job: RunningJob, folders: Sequence[Path]) -> dict[int, str]:
    """Returns pid -> socket of an instrumented rank."""
    sockets = {
        rank.pid: next(
            (path for folder in folders for path in folder.glob(f"*.{rank.pid}.*.sock")), None
        )
        for rank in job.ranks
    }
    return {pid: str(path) for pid, path in sockets.items() if path is not None}


def _write(folder: Path, form: Mapping[str, Any]) -> None:
    write_json(private_folder(folder) / f"{form['pid']}.json", form)
