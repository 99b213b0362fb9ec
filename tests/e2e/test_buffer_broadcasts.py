"""A model with buffers (batch norm) synchronises in its forward pass, too: a rank that waits there
for a late rank is not reported as slow."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import forked_trainer, run
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow


def test_the_late_rank_is_named(tmp_path: Path) -> None:
    fault = "slow:rank=1,phase=input,ms=60"
    job = forked_trainer("torch-ddp", model="cnn-nano", device="cpu", steps=40, fault=fault)
    recording = tmp_path / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run([*doctor, *job])
    assert ended.code == 0, ended.err
    (found,) = list_warnings(diagnose(load_recording(recording)))
    assert (found.code, [one.rank for one in found.culprits]) == ("straggler-input", [1])
