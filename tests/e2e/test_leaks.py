"""A trainer that leaks memory: the rank is named within a hundred steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import forked_trainer
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def test_a_mebibyte_a_step_in_a_hundred_steps(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    options = {"model": "cnn-nano", "batch": 4, "steps": 100, "fault": "leak:rank=1,mb=1"}
    job = forked_trainer("torch-ddp", **options)
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run_undisturbed([*doctor, *job], recording)
    assert ended.code == 0, ended.err
    diagnosis = diagnose(load_recording(recording))
    (found,) = [one for one in list_warnings(diagnosis) if one.code == "leak-host"]
    assert [one.rank for one in found.culprits] == [1]
    assert found.evidence[0].value == pytest.approx(2**20, rel=0.25)
