"""A built-in trainer that really leaks: the rank is named within a hundred steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from tests.support.examining import loud, run_calmly

pytestmark = [pytest.mark.slow, pytest.mark.untimed]
DOCTOR = (sys.executable, "-m", "mgpu_doctor")


def test_a_mebibyte_a_step_in_a_hundred_steps(tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    train = ("train", "torch-ddp", "--ranks", "2", "--steps", "100", "--model", "cnn-nano")
    fault = ("--batch", "4", "--fault", "leak:rank=1,mb=1")
    ended = run_calmly([*DOCTOR, *train, *fault, "--dir", str(recording)], recording)
    assert ended.code == 0, ended.err
    diagnosis = diagnose(load_recording(recording))
    (found,) = [one for one in loud(diagnosis) if one.code == "leak-host"]
    assert [one.rank for one in found.culprits] == [1]
    assert found.evidence[0].value == pytest.approx(2**20, rel=0.25)
