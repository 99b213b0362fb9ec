"""A job is watched while it runs: a finding appears, and is resolved when the fault ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import NotARecording
from mgpu_doctor.findings import Finding
from mgpu_doctor.live.finding_history import select_recent
from mgpu_doctor.live.job_watch import Watch
from mgpu_doctor.live.seen_job import Seen
from tests.support.jobs import forked, started

pytestmark = pytest.mark.slow

CODE = "straggler-compute"
FAULTY = 180
PATIENCE = 120.0


def test_a_straggler_appears_and_resolves_itself(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    planted = ("--fault", "forward", "--ms", "40", "--rank", "1", "--until", str(FAULTY))
    job = forked("plain_ddp.py", "--steps", "100000", *planted)  # ended by the test
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    watch = Watch(recording)
    with started([*doctor, *job]):
        there = awaited(watch, lambda seen: find_live_finding(seen) is not None)
        first = find_live_finding(there)
        assert first is not None
        assert [culprit.rank for culprit in first.culprits] == [1]
        later = awaited(watch, lambda seen: steps(seen) > steps(there) + 30)
        grown = find_live_finding(later)
        assert grown is not None
        gone = awaited(
            watch, lambda seen: CODE in [one.finding.code for one in select_recent(seen.followed)]
        )
        assert gone.diagnosis.case.job.outcome is Outcome.RUNNING
        assert find_live_finding(gone) is None
        assert steps(gone) >= FAULTY
    watch.close()


def awaited(watch: Watch, condition: Callable[[Seen], bool]) -> Seen:
    """The first view of which the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            seen = watch.poll(anew=True)
        except NotARecording:
            time.sleep(0.1)
            continue
        if condition(seen):
            return seen
        time.sleep(0.2)
    raise AssertionError(f"never came; last: {seen.diagnosis.findings}, step {steps(seen)}")


def find_live_finding(seen: Seen) -> Finding | None:
    return next((one for one in seen.diagnosis.findings if one.code == CODE), None)


def steps(seen: Seen) -> int:
    return max((rank.last_step or 0 for rank in seen.diagnosis.ranks), default=0)
