"""Ranks of built-in trainers around which something is wrong, for real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from tests.support.examining import loud, run_calmly

pytestmark = pytest.mark.slow
LONG_STEPS = ("--model", "gpt-nano", "--steps", "120")


@pytest.mark.parametrize(
    ("name", "fault", "options", "exits", "code"),
    [
        ("torch-ddp", "hog:rank=1", ("--model", "gpt-nano", "--steps", "200"), 0, "straggler-host"),
        ("torch-pp", "heavy-stage:rank=1", ("--model", "gpt-nano"), 0, "imbalance-stage"),
        ("torch-ddp", "missing:rank=1", ("--timeout", "15"), 1, "failed-rendezvous"),
        (*("tf-multiworker", "hog:rank=1,processes=3", LONG_STEPS), 0, "straggler-host"),
        (*("tf-multiworker", "missing:rank=1", ("--timeout", "15")), 1, "failed-tf-worker-missing"),
    ],
)
def test_the_rank_is_named(  # noqa: PLR0917
    tmp_path: Path, name: str, fault: str, options: tuple[str, ...], exits: int, code: str
) -> None:
    doctor = [sys.executable, "-m", "mgpu_doctor", "train", name, "--dir", str(tmp_path / "job")]
    planted = ("--device", "cpu", "--fault", fault, *options)
    assert run_calmly([*doctor, *planted], tmp_path / "job").code == exits
    (found,) = loud(diagnose(load_recording(tmp_path / "job")))
    assert (found.code, [one.rank for one in found.culprits]) == (code, [1])
