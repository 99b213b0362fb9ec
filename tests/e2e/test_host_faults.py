"""Real trainers with a fault outside the rank's own code (a busy core, a missing rank): the rank is
named. An uneven pipeline stage: test_trainers.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.support.jobs import run
from tests.support.observed_jobs import list_warnings

pytestmark = pytest.mark.slow


def test_the_rank_whose_core_is_busy_is_named(tmp_path: Path) -> None:
    options = ("--fault", "hog:rank=1,processes=3", "--model", "gpt-nano", "--steps", "100")
    assert_named(tmp_path, "tf-multiworker", options, 0, "straggler-host")


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("name", "code"),
    [("torch-ddp", "failed-rendezvous"), ("tf-multiworker", "failed-tf-worker-missing")],
)
def test_the_missing_rank_is_named(tmp_path: Path, name: str, code: str) -> None:
    assert_named(tmp_path, name, ("--fault", "missing:rank=1", "--timeout", "10"), 1, code)


def assert_named(
    tmp_path: Path, name: str, options: tuple[str, ...], exits: int, code: str
) -> None:
    recording = tmp_path / "job"
    doctor = [sys.executable, "-m", "mgpu_doctor", "train", name, "-q", "--dir", str(recording)]
    # `run_calmly` may take the processes of `hog` for other work on this machine, and wait.
    assert run([*doctor, "--device", "cpu", *options]).code == exits
    (found,) = list_warnings(diagnose(load_recording(recording)))
    assert (found.code, [one.rank for one in found.culprits]) == (code, [1])
