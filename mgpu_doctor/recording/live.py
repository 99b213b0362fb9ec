"""Which of the recordings kept here belong to a job that runs on this machine now."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from mgpu_probes.outside.processes import alive

from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, INFO

MOST_INFO_BYTES = 4 << 20


def live(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Recordings without an end whose job's first process is alive, oldest first."""
    try:
        folders = sorted(runs(environment).iterdir())
    except OSError:
        return ()
    return tuple(folder for folder in folders if is_live(folder))


def is_live(folder: Path) -> bool:
    """Whether the job of this recording runs on this machine. False where nothing tells."""
    if (folder / END).exists():
        return False
    try:
        with open(folder / INFO, "rb") as file:
            info = json.loads(file.read(MOST_INFO_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(info, dict) or info.get("host") not in (None, socket.gethostname()):
        return False
    pid, ticks = info.get("job_pid"), info.get("job_start_ticks")
    if not isinstance(pid, int) or pid <= 0:
        return False
    return alive(pid, ticks if isinstance(ticks, int) else None)
