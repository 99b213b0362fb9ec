"""Which recordings belong to jobs that still run on this machine."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mgpu_probes.outside import processes

from mgpu_doctor.recording.elsewhere import all_remembered
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, INFO

NEWEST = 256
"""Folders looked at, newest first by name: a job that runs is among the newest."""
MAX_INFO_BYTES = 1 << 20


def living(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Recordings of jobs whose first process is alive, the one started last first: those kept in
    the doctor's home, and those that `--dir` put elsewhere."""
    folders = all_remembered(environment)
    with contextlib.suppress(OSError):
        kept = sorted(os.listdir(runs(environment)), reverse=True)[:NEWEST]
        folders |= {name: runs(environment) / name for name in kept}
    return [folders[name] for name in sorted(folders, reverse=True) if is_living(folders[name])]


def is_living(recording: Path) -> bool:
    """Whether the job of this recording runs here. False for what is no recording."""
    if (recording / END).exists():
        return False
    info = _info(recording)
    pid, ticks = info.get("job_pid"), info.get("job_start_ticks")
    if not isinstance(pid, int) or pid <= 0 or info.get("host") != os.uname().nodename:
        return False
    return processes.alive(pid, ticks if isinstance(ticks, int) else None)


def _info(recording: Path) -> dict[str, Any]:
    try:
        with open(recording / INFO, "rb") as file:
            content = json.loads(file.read(MAX_INFO_BYTES))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
