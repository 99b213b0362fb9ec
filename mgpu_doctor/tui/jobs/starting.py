"""Starts a job under observation that is independent of the process that starts it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mgpu_probes.outside import processes

from mgpu_doctor.case.untrusted_json import read_object
from mgpu_doctor.formatting import format_signal
from mgpu_doctor.recording.home import runs
from mgpu_doctor.recording.layout import END, INFO
from mgpu_doctor.report.text import line

PATIENCE = 30.0
"""Seconds to wait for the recording: Python may start slowly from a network file system."""
GLANCE = 0.05
NEWEST = 64
MOST_WORDS = 16 << 10
PROGRAM, OBSERVING = "mgpu-doctor", ("run", "train")
"""Commands that observe the job they start: the job is not observed a second time."""
OWN = f"{PROGRAM}: "


class NotStartedError(Exception):
    """The job did not start or cannot be observed; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Started:
    """A started job. `pid`: the doctor that observes it."""

    recording: Path
    pid: int


def run_words(command: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments for `mgpu-doctor` to run `command`, which may itself be one of
    `OBSERVING`."""
    program, words = os.path.basename(command[0]), tuple(command[1:])
    if program == PROGRAM and words and words[0] in OBSERVING:
        return words
    return ("run", "--", *command)


def shown(words: Sequence[str]) -> str:
    """Returns the command line as one would type it."""
    return shlex.join(["mgpu-doctor", *words])


def start(words: Sequence[str], *, patience: float = PATIENCE) -> Started:
    """Start `mgpu-doctor WORDS…` (`run` or `train`) in a session of its own, without standard
    input, with its output only in its recording. Returns when the job runs or has ended.

    Raises `NotStartedError` with the message of the program that refused."""
    with tempfile.TemporaryFile() as voice:
        starter = [sys.executable, "-m", "mgpu_doctor.tui.jobs.detached_start", str(voice.fileno())]
        try:
            subprocess.run(
                [*starter, *words],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(voice.fileno(),),
                start_new_session=True,
                timeout=patience,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NotStartedError(f"the job was not started: {line(str(error))}.") from None
        return _wait(voice, _folder(words), patience)


def _wait(voice: IO[bytes], folder: Path | None, patience: float) -> Started:
    deadline = time.monotonic() + patience
    pid: int | None = None
    while True:
        shown = os.pread(voice.fileno(), MOST_WORDS, 0).decode("utf-8", "replace")
        first, ended, words = shown.partition("\n")
        if ended and first.isdecimal():
            pid = int(first)
        over = pid is not None and not processes.is_alive(pid)  # checked before its files are read
        recording = _recording(pid, folder) if pid is not None else None
        if pid is not None and recording is not None:
            return Started(recording, pid)
        if over or time.monotonic() > deadline:
            raise NotStartedError(_reason(words, over=over))
        time.sleep(GLANCE)


def _folder(words: Sequence[str]) -> Path | None:
    """Returns the value of `--dir` among the doctor's own arguments."""
    own = words[: words.index("--")] if "--" in words else words
    return Path(own[own.index("--dir") + 1]).absolute() if "--dir" in own[:-1] else None


def _recording(doctor: int, folder: Path | None) -> Path | None:
    """Returns the recording that names this doctor's job."""
    try:
        names = sorted(os.listdir(runs()), reverse=True)[:NEWEST] if folder is None else []
    except OSError:
        return None
    for path in [folder] if folder is not None else [runs() / name for name in names]:
        info = _object(path / INFO)
        if info.get("doctor_pid") == doctor and info.get("host") == os.uname().nodename:
            return path if isinstance(info.get("job_pid"), int) else None
    return None


def _reason(words: str, *, over: bool) -> str:
    """Returns the doctor's last message, else its last line of output."""
    lines = [cleaned for cleaned in map(line, words.splitlines()) if cleaned]
    own_lines = [line.removeprefix(OWN) for line in lines if line.startswith(OWN)] or lines
    if own_lines:
        return own_lines[-1]
    return "it ended without a message." if over else "its recording did not appear in time."


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path, root=path.parent)
    except (OSError, ValueError):
        return {}


def farewell(started: Started) -> str:
    """Returns the message on leaving the dashboard: how the job ended, or how to reattach."""
    own = started.recording.parent == runs()
    name = started.recording.name if own else shlex.quote(str(started.recording))
    if not (started.recording / END).exists():
        if processes.is_alive(started.pid):
            return f"the job keeps running; `mgpu-doctor top {name}` shows it again."
        return f"the job's end was not recorded; `mgpu-doctor diagnose {name}` shows what is known."
    end = _object(started.recording / END)
    code, signal, asked = end.get("exit_code"), end.get("signal"), end.get("asked")
    if isinstance(asked, str):
        how = f"has ended as requested by {line(asked)}"
    elif isinstance(signal, int):
        how = f"was ended by {format_signal(signal)}"
    elif isinstance(code, int):
        how = "has completed" if code == 0 else f"has ended with exit code {code}"
    else:
        how = "has ended"
    return f"the job {how}; `mgpu-doctor diagnose {name}` shows more."


Starter = Callable[[Sequence[str]], Started]
