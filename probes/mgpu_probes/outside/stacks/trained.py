"""Which thread of a process trains, where that is not the main one: in workers of Ray Train.

The probe names that thread (`inprocess/ray_hooks.py`); the kernel calls it so in /proc/PID/task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mgpu_probes.inprocess.layout import TRAINS

Json = dict[str, Any]

_WORKER = "ray::RayTrainWo"
"""What the kernel calls the process: 15 characters."""
_BEGINS = ("_run_target", "worker_group/thread_runner.py")
"""Function and file in which the thread begins (Ray 2.60)."""


def thread(proc: Path, pid: int, name: str) -> int | None:
    """Its number, if the process of that name has such a thread."""
    if name != _WORKER:
        return None
    folder = proc / str(pid) / "task"
    try:
        tasks = [one for one in os.listdir(folder) if one.isdecimal()]
    except OSError:
        return None
    return next((int(one) for one in tasks if _comm(folder / one) == TRAINS), None)


def put_first(stack: Json) -> Json:
    """The stack with the thread that trains as the main one, if it is there."""
    threads = stack["threads"]
    found = next((one for one in threads if any(map(_begins, one["frames"]))), None)
    if found is None:
        return stack
    others = [{**one, "main": False} for one in threads if one is not found]
    return {**stack, "threads": [{**found, "main": True}, *others]}


def _begins(frame: Sequence[Any]) -> bool:
    return str(frame[0]).endswith(_BEGINS[0]) and str(frame[1]).endswith(_BEGINS[1])


def _comm(folder: Path) -> str:
    try:
        return (folder / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
