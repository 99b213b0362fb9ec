"""Runs that continue each other: a job that a scheduler requeues, or that is started again after a
failure. Each run has a recording of its own; this finds the earlier ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mgpu_doctor.recording.layout import END, INFO
from mgpu_doctor.recording.live_recordings import is_written, read_object

VARIABLE = "MGPU_DOCTOR_JOB"
"""The environment variable that names a job: runs with one name may continue each other."""
LONGEST_NAME = 200
MOST_SEARCHED = 2000
"""Recordings in the folder, the last by name, whose `recording.json` is read."""
SAME = ("series", "command", "cwd")
"""Keys of `recording.json` that are equal in runs that continue each other."""


def describe_series(environment: Mapping[str, str], *, of_nodes: bool = False) -> dict[str, Any]:
    """Keys for `recording.json`. `series`: the name that a run shares with those that it continues,
    `MGPU_DOCTOR_JOB` or the Slurm job and the task in it; `requeue`: how often Slurm has requeued
    the job. Empty: neither is known. A requeued Slurm job keeps its number. `of_nodes`: its tasks
    write into one recording."""
    name = environment.get(VARIABLE)
    if name:
        return {"series": f"name {name}"[:LONGEST_NAME]}
    job, count = environment.get("SLURM_JOB_ID"), environment.get("SLURM_RESTART_COUNT", "0")
    if not job or not count.isascii() or not count.isdecimal():
        return {}
    cluster = environment.get("SLURM_CLUSTER_NAME", "")
    task = "" if of_nodes else environment.get("SLURM_PROCID", "")
    return {"series": f"slurm {cluster} {job} {task}"[:LONGEST_NAME], "requeue": int(count)}


def find_earlier_runs(folder: Path) -> list[Path]:
    """The recordings beside this one that it continues, oldest first: those of the same series,
    command and working folder, back to the last run that completed. In a Slurm job that was not
    requeued, a second run continues nothing."""
    own = read_object(folder, INFO) or {}
    if not isinstance(own.get("series"), str):
        return []
    earlier: list[Path] = []
    requeue = own.get("requeue")
    for _, path, info in sorted(_find_alike(folder, own), key=lambda run: run[0], reverse=True):
        end = read_object(path, END) or {}
        if end.get("exit_code") == 0 or is_written(path):
            break
        before = info.get("requeue")
        if isinstance(requeue, int):
            if not isinstance(before, int) or before >= requeue:
                continue
            requeue = before
        earlier.append(path)
    return earlier[::-1]


def _find_alike(
    folder: Path, own: Mapping[str, Any]
) -> Iterator[tuple[float, Path, Mapping[str, Any]]]:
    """When each earlier run of the same kind was started, its recording and `recording.json`."""
    place, until = folder.resolve(), own.get("started")
    if not isinstance(until, float | int):
        return
    try:
        names = sorted(os.listdir(place.parent), reverse=True)[:MOST_SEARCHED]
    except OSError:
        return
    for name in names:
        info = read_object(place.parent / name, INFO) if name != place.name else None
        if info is None or any(info.get(key) != own.get(key) for key in SAME):
            continue
        started = info.get("started")
        if isinstance(started, float | int) and started < until:
            yield float(started), place.parent / name, info
