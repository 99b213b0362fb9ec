"""Runs the jobs of `benchmarks.blame` and gets their diagnoses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from mgpu_probes.outside import jobs
from mgpu_trainers import catalogue

from benchmarks.support import DOCTOR, JOBS, STEADY, TORCHRUN
from benchmarks.trials import Launcher, Trial

PATIENCE = 240.0
"""Seconds after which a job is given up: several times what the slowest takes on busy cores."""
SETTLED = 12.0
"""Seconds that a hang lasts before it is examined: a user does not ask at once."""

Diagnosis = dict[str, Any]


class TrialError(Exception):
    """The job did not do what its trial is about; the message says what it did."""


def command_of(trial: Trial) -> list[str]:
    """The command line of the job, without the doctor."""
    script = str(JOBS / f"{trial.script}.py")
    ranks = str(trial.ranks)
    match trial.launcher:
        case Launcher.TORCHRUN:
            return [*TORCHRUN, ranks, script, *trial.options]
        case Launcher.PLAIN:
            launcher = [sys.executable, str(JOBS / "env_ranks.py"), "--ranks", ranks]
            return [*launcher, f"{trial.script}.py", *trial.options]
        case Launcher.WORKERS:
            launcher = [sys.executable, str(JOBS / "tf_workers.py"), "--workers", ranks]
            return [*launcher, f"{trial.script}.py", *trial.options]
        case Launcher.SCRIPT:
            return [sys.executable, script, *trial.options]
        case Launcher.TRAINER:
            values = dict(zip(trial.options[::2], trial.options[1::2], strict=True))
            return catalogue.command(catalogue.find(trial.script), trial.ranks, values)


def examined(trial: Trial, kept: Path | None) -> Diagnosis:
    """The diagnosis of the job. Its recording stays in the folder `kept`; one that is there already
    is diagnosed anew, and the job is not run."""
    if trial.outside:
        return _from_outside(trial)
    if kept is not None and folder_of(trial, kept).is_dir():
        return _json_of([*DOCTOR, "diagnose", str(folder_of(trial, kept)), "--json"])
    return _recorded(trial, kept)


def folder_of(trial: Trial, kept: Path) -> Path:
    """Where the recording of a trial is kept."""
    name = "".join(letter if letter.isalnum() else "-" for letter in trial.name)
    return kept / f"{trial.ranks}-{name}"


def _recorded(trial: Trial, kept: Path | None) -> Diagnosis:
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        out = Path(folder) / "diagnosis.json"
        recording = Path(folder) / "run" if kept is None else folder_of(trial, kept)
        observed = [*DOCTOR, "run", "--dir", str(recording), "--json-out", str(out), "--"]
        with _started([*observed, *command_of(trial)], trial) as job:
            try:
                job.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise TrialError(f"{trial.name}: not over after {PATIENCE:g} s") from None
        if bool(job.returncode) != trial.fails or not out.exists():
            raise TrialError(f"{trial.name}: exit code {job.returncode}")
        diagnosis: Diagnosis = json.loads(out.read_text())
        return diagnosis


def _from_outside(trial: Trial) -> Diagnosis:
    with tempfile.TemporaryDirectory(prefix="mgpu-doctor-bench-") as folder:
        mark = Path(folder) / "mark"
        with _started([*command_of(trial), "--mark", str(mark)], trial) as job:
            end = time.monotonic() + PATIENCE
            while not mark.exists():
                if time.monotonic() > end or job.poll() is not None:
                    raise TrialError(f"{trial.name}: the job did not hang")
                time.sleep(0.1)
            time.sleep(SETTLED)
            return _json_of([*DOCTOR, "diagnose", str(job.pid), "--json"])


def _json_of(command: list[str]) -> Diagnosis:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    diagnosis: Diagnosis = json.loads(done.stdout)
    return diagnosis


@contextmanager
def _started(command: list[str], trial: Trial) -> Iterator[subprocess.Popen[bytes]]:
    """The running command; what is left of its job is killed at the end."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **dict(STEADY), **dict(trial.environment)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill_family(process.pid)
        process.wait()


def _kill_family(pid: int) -> None:
    """Ends the processes that are left, those of a launcher's own sessions, too."""
    job = jobs.find(pid)
    pids = {process.pid for process in job.processes} if job else set()
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        pids |= {pid, *(child.pid for child in root.children(recursive=True))}
    for each in pids:
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
