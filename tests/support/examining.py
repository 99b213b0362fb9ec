"""Real jobs under observation, and what the doctor says of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Diagnosis, Finding, Severity
from tests.support.calm import calmly
from tests.support.jobs import Ended, plain, run


def run_calmly(command: Sequence[str], recording: Path) -> Ended:
    """Runs a command that leaves a recording; again, where others disturbed it meanwhile."""

    def once() -> Ended:
        shutil.rmtree(recording, ignore_errors=True)
        return run(command)

    return calmly(once)


def recorded(
    folder: Path,
    script: str,
    *options: str,
    ranks: int = 2,
    environment: Mapping[str, str] | None = None,
    launcher: Callable[..., list[str]] = plain,
) -> Case:
    """Runs a script of `tests/jobs` under the doctor; the case it leaves."""
    recording = folder / "recording"
    command = launcher(f"{script}.py", *options, ranks=ranks)
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    given = [f"{name}={value}" for name, value in (environment or {}).items()]
    ended = run_calmly(["env", *given, *doctor, *command], recording)
    assert ended.code == 0, ended.err
    return load_recording(recording)


def examined(
    folder: Path,
    script: str,
    *options: str,
    ranks: int = 2,
    launcher: Callable[..., list[str]] = plain,
) -> Diagnosis:
    """The same, and its diagnosis."""
    return diagnose(recorded(folder, script, *options, ranks=ranks, launcher=launcher))


class Observed:
    """What jobs left behind: each is run when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._cases: dict[tuple[str | int, ...], Case] = {}

    def case(self, script: str, *options: str, ranks: int = 2) -> Case:
        job: tuple[str | int, ...] = (script, *options, ranks)
        if job not in self._cases:
            folder = self._folders.mktemp(script)
            self._cases[job] = recorded(folder, script, *options, ranks=ranks)
        return self._cases[job]

    def diagnosis(self, script: str, *options: str, ranks: int = 2) -> Diagnosis:
        return diagnose(self.case(script, *options, ranks=ranks))


def loud(diagnosis: Diagnosis) -> list[Finding]:
    """What would disturb somebody: findings at warning or worse."""
    return [finding for finding in diagnosis.findings if finding.severity is not Severity.INFO]


def named(diagnosis: Diagnosis, code: str) -> Finding | None:
    """The finding with this code."""
    return next((finding for finding in diagnosis.findings if finding.code == code), None)
