"""Runs one command under observation: starts it, passes signals on, keeps the recording."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import processes

from mgpu_doctor import __version__
from mgpu_doctor.launch import program
from mgpu_doctor.launch.injection import job_environment
from mgpu_doctor.launch.notebook import Notebook
from mgpu_doctor.launch.signals import ASKING, FORWARDED, Inbox
from mgpu_doctor.recording import home
from mgpu_doctor.recording.write import OccupiedError

__all__ = ["Observed", "OccupiedError", "observe"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What is left of a run. `recording`: None where none could be written."""

    recording: Path | None
    exit_code: int
    """The job's own, or 128 + the signal that ended it."""


def observe(
    command: Sequence[str],
    *,
    directory: Path | None,
    kind: str,
    name: str | None = None,
    capture: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Observed:
    """Run `command` as the bare command would run, with a recording of it, and wait for its end.

    `directory`: the recording itself; None: a new one in the doctor's home. `kind`: "run" or
    "train". `name`: what the recording's id says ran. `environment`: the job's, without ours.

    Raises `OccupiedError` where `directory` must not be written to, and `program.CannotStartError`.
    Anything else that goes wrong with the recording is said on standard error and costs the
    recording, never the job.
    """
    environment = dict(os.environ if environment is None else environment)
    path = program.find(command[0], environment)
    started = time.time()
    identity = home.new_id(name or home.job_name(command), started)
    notebook = Notebook.begin(
        directory or home.runs(environment) / identity,
        {
            "id": identity,
            "kind": kind,
            "command": list(command),
            "cwd": os.getcwd(),
            "started": started,
            "doctor_pid": os.getpid(),
            "doctor_version": __version__,
        },
    )
    inbox = Inbox()
    try:
        pid = program.start(
            path,
            command,
            job_environment(environment, notebook.boxes),
            streams={},
            signal_mask=inbox.before,
        )
        notebook.note(job_pid=pid, job_start_ticks=processes.start_ticks(pid))
        status, asked = _attend(pid, inbox)
    finally:
        inbox.close()
    code = os.waitstatus_to_exitcode(status)
    notebook.finish(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        ended=time.time(),
        asked=asked,
        doctor_cpu_seconds=time.process_time(),
    )
    return Observed(notebook.folder, code if code >= 0 else 128 - code)


def _attend(pid: int, inbox: Inbox) -> tuple[int, str | None]:
    """Pass signals on until the job's first process has ended: its wait status, who asked."""
    asked = None
    poll = select.poll()
    poll.register(inbox.descriptor, select.POLLIN)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, asked
        poll.poll()
        for received in inbox.read():
            if received.signal in ASKING:
                asked = asked or received.signal.name
            if received.signal in FORWARDED and not received.from_kernel:
                os.kill(pid, received.signal)
            if received.signal == signal.SIGTSTP:
                inbox.stop_as_told()
