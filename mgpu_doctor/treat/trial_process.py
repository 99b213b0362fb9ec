"""The process of one trial: runs the job under observation, in a private view where that is asked
for. A program of its own, because `observe` takes over the signals of its process.

`python -m mgpu_doctor.treat.trial_process REQUEST` reads REQUEST, a JSON file; see `TrialRequest`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from mgpu_doctor.launch.job_command import CannotStartError
from mgpu_doctor.launch.observe import observe
from mgpu_doctor.launch.private_view import view_command
from mgpu_doctor.treat.treatment_file import treated_environment

OFFLINE = {
    "WANDB_MODE": "offline",
    "COMET_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
}
"""Variables by which experiment trackers send nothing."""
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2): no trial outlives a session that was killed
_SESSION_IS_GONE = 1


class TrialRequest(TypedDict):
    """A trial, as JSON."""

    command: list[str]
    recording: str
    """A new or empty folder."""
    scratch: str
    """An empty folder for the private view; empty: the job runs without one."""
    values: dict[str, bool | int]
    """Treatments of the catalogue."""
    blocks: tuple[int, int, bool] | None
    """First step and length of the blocks in which they are off and on, and whether the order is
    inverted; None: always on."""
    session_pid: int
    """The process that measures the trial and ends it."""


def main(arguments: Sequence[str]) -> int:
    """Runs the trial; its exit code is the job's."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    request: TrialRequest = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if os.getppid() != request["session_pid"]:  # it was killed before the line above
        return _SESSION_IS_GONE
    recording = Path(request["recording"])
    private = bool(request["scratch"])
    try:
        observed = observe(
            request["command"],
            directory=recording,
            kind="run",
            environment=treated_environment(
                {**os.environ, **OFFLINE}, request["values"], request["blocks"]
            ),
            starter=view_command(Path(request["scratch"]), recording) if private else (),
        )
    except CannotStartError as error:
        print(error, file=sys.stderr)
        return error.code
    return observed.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
