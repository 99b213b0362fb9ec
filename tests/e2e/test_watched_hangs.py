"""`run` detects a hang by itself and keeps the evidence; a slow job is not a hang."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Severity
from tests.support.jobs import run, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def observed(recording: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(recording), *options, "--"]


@pytest.mark.parametrize(
    ("how", "code", "culprits"),
    [
        ("lock", "hang-rank-behind", [1]),
        ("skip", "hang-collective-mismatch", []),  # between two, nothing tells who is wrong
    ],
)
def test_a_hang_is_flagged_and_its_evidence_kept(
    tmp_path: Path, how: str, code: str, culprits: list[int]
) -> None:
    recording = tmp_path / "recording"
    job = torchrun("hangs.py", how, "--at-step", "40")
    ended = run([*observed(recording, "--on-hang", "stop"), *job])
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


def test_a_rank_that_is_only_slow_is_not_flagged(tmp_path: Path) -> None:
    """Eight seconds of own code in every step, while the other rank waits: longer than the 5 s
    after which the watchdog samples stacks at the earliest."""
    job = torchrun("hangs.py", "late", "--late", "8", "--steps", "2")
    ended = run([*observed(tmp_path / "recording"), *job])
    assert ended.code == 0, ended.err
    assert "no progress" not in ended.err
    assert load_recording(tmp_path / "recording").job_snapshots == ()
