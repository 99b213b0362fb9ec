"""A model with buffers (batch norm) is synchronised in its forward pass, too: who waits there for
a late rank is no slow rank itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mgpu_trainers import catalogue

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from tests.support.examining import loud
from tests.support.jobs import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "slow", "phase", "code"),
    [(2, 1, "other", "straggler-other"), (4, 2, "input", "straggler-input")],
)
def test_the_late_rank_is_named(
    tmp_path: Path, ranks: int, slow: int, phase: str, code: str
) -> None:
    # On a slow machine 40 ms of a step of four ranks are not worth a warning.
    fault = f"slow:rank={slow},phase={phase},ms={20 * ranks}"
    wanted = {"model": "cnn-nano", "device": "cpu", "steps": 70, "fault": fault}
    job = catalogue.command(catalogue.find("torch-ddp"), ranks, wanted)
    recording = tmp_path / "recording"
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "--dir", str(recording), "--"]
    ended = run([*doctor, *job])
    assert ended.code == 0, ended.err
    (found,) = loud(diagnose(load_recording(recording)))
    assert (found.code, [one.rank for one in found.culprits]) == (code, [slow])
