"""Jobs on several hosts, as tests examine them: by a fleet in this process, or by the verb."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.recording.box import Box, read_box

STEPS = 60
"""Of each rank before it is examined."""


def polled(fleet: Fleet, condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Polls until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, (fleet.states(), [job.folder for job in fleet.jobs])
        fleet.poll(0.1)


def boxes_of(fleet: Fleet) -> dict[int | None, Box]:
    """Rank -> its box."""
    paths = (path for job in fleet.jobs for path in job.folder.glob("hosts/*/boxes/*.box"))
    return {box.identity.rank: box for box in map(read_box, paths)}


def steps_of(fleet: Fleet) -> dict[int | None, int]:
    """Rank -> steps, at most `STEPS`."""
    return {rank: min(STEPS, len(box.steps)) for rank, box in boxes_of(fleet).items()}


def diagnose_hosts(*options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of `diagnose` with these options, for one job."""
    command = (sys.executable, "-m", "mgpu_doctor", "diagnose", *options, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
