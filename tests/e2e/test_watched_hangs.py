"""`run` detects a hang by itself and keeps the evidence; a slow job is not a hang."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from tests.support.jobs import Ended, plain, started, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


COMMANDS = {
    "lock": torchrun("hangs.py", "lock", "--at-step", "40"),
    "skip": torchrun("hangs.py", "skip", "--at-step", "40"),
    "late": plain("hangs.py", "late", "--late", "6", "--steps", "2"),
}


@pytest.fixture(scope="module")
def watched_jobs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, Ended]]:
    """The recording of each job and what it printed. They mostly wait, so they run at once."""
    doctor = (sys.executable, "-m", "mgpu_doctor", "run", "--on-hang", "stop", "--dir")
    folder, ended = tmp_path_factory.mktemp("jobs"), {}
    with ExitStack() as stack:
        running = {
            how: stack.enter_context(started([*doctor, str(folder / how), "--", *command]))
            for how, command in COMMANDS.items()
        }
        for how, job in running.items():
            out, err = job.communicate(timeout=200)
            ended[how] = (folder / how, Ended(job.returncode, out, err))
    return ended


@pytest.mark.parametrize(
    ("how", "code", "culprits"),
    [
        ("lock", "hang-rank-behind", [1]),
        ("skip", "hang-collective-mismatch", []),  # between two, nothing tells who is wrong
    ],
)
def test_a_hang_is_flagged_and_its_evidence_kept(
    watched_jobs: Mapping[str, tuple[Path, Ended]], how: str, code: str, culprits: list[int]
) -> None:
    recording, ended = watched_jobs[how]
    assert "mgpu-doctor: the job has made no progress for" in ended.err
    assert "mgpu-doctor: stopping the job: no progress for" in ended.err
    case = load_recording(recording)
    assert len(case.job_snapshots) >= 2
    found = diagnose(case).findings[0]
    assert (found.code, found.severity) == (code, Severity.CRITICAL)
    assert [one.rank for one in found.culprits] == culprits
    host = recording / "hosts" / os.uname().nodename
    kept = [host / "looks.jsonl", *(host / "flight").iterdir()]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)
    assert len(kept) == 3


def test_a_rank_that_is_only_slow_is_not_flagged(
    watched_jobs: Mapping[str, tuple[Path, Ended]],
) -> None:
    """Six seconds of own code in every step, while the other rank waits: longer than the 5 s after
    which the watchdog samples stacks at the earliest."""
    recording, ended = watched_jobs["late"]
    assert ended.code == 0, ended.err
    assert "no progress" not in ended.err
    assert load_recording(recording).job_snapshots == ()
