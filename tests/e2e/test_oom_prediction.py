"""A job that really runs out of memory, in a group with a limit: first predicted, then
explained."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mgpu_doctor.case.model import Outcome
from mgpu_doctor.case.recording_case import NotARecording, load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding
from mgpu_doctor.live.job_watch import Watch
from tests.support.failing_jobs import MIB, memory_group
from tests.support.jobs import started
from tests.support.observed_jobs import list_warnings

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

LEAK = 2
"""MiB per step."""
LEAKING = ("train", "torch-ddp", "-q", "--model", "cnn-nano", "--batch", "4", "--ranks", "2")
FOREVER = ("--steps", "100000", "--fault", f"leak:rank=1,mb={LEAK}")
PATIENCE = 120.0
"""Seconds in which the job is full at the latest."""


def test_a_leak_is_predicted_and_its_end_is_explained(tmp_path: Path) -> None:
    """In a control group with 2 GiB; where this machine lets us make none, the ranks have a limit
    of 2 GiB each for their data, of which a forecast knows nothing: it tells of the host's."""
    recording = tmp_path / "recording"
    doctor = (sys.executable, "-m", "mgpu_doctor", *LEAKING, *FOREVER, "--dir", str(recording))
    with memory_group(2048 * MIB) as group:
        codes = ("oom-risk",) if group is not None else ("oom-risk", "leak-host")
        limit = f"echo $$ > {group}/cgroup.procs" if group is not None else "ulimit -d 2097152"
        with started(["sh", "-c", f'{limit} && exec "$@"', "sh", *doctor]) as job:
            foretold = seen_running(recording, codes)
            job.communicate(timeout=PATIENCE)
    assert [culprit.rank for culprit in foretold.culprits] == [1]
    assert foretold.evidence[0].value == pytest.approx(LEAK * MIB, rel=0.25)
    if group is not None:
        left = [one.value for one in foretold.evidence if "left" in one.measure]
        assert all(0 < bytes_ < 2048 * MIB for bytes_ in numbers(left))
    assert job.returncode != 0
    after = list_warnings(diagnose(load_recording(recording)))
    death = after[0]
    assert death.code == "oom-host"
    assert [culprit.rank for culprit in death.culprits] == [1]
    assert death.victims == (0,)
    told = f"{death.title} {death.cause}"
    assert "the 2 GiB of its control group were full" in told or "ulimit -d" in told


def seen_running(recording: Path, codes: Sequence[str]) -> Finding:
    """The finding, as somebody sees it who watches the job while it runs."""
    watch = Watch(recording)
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            try:
                diagnosis = watch.poll(anew=True).diagnosis
            except NotARecording:
                time.sleep(0.1)
                continue
            found = next((one for one in diagnosis.findings if one.code in codes), None)
            if found is not None and diagnosis.case.job.outcome is Outcome.RUNNING:
                return found
            time.sleep(0.2)
    finally:
        watch.close()
    raise AssertionError(f"nobody foretold it; last: {diagnosis.findings}")


def numbers(values: Sequence[object]) -> list[float]:
    return [float(one) for one in values if isinstance(one, (int, float))]
