"""Real trainers with ranks that call other collectives than the others. Other data and weights:
test_training_defects.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Severity
from tests.support.observed_jobs import list_warnings, run_undisturbed

pytestmark = [pytest.mark.slow, pytest.mark.untimed]
DOCTOR = (sys.executable, "-m", "mgpu_doctor")


def list_codes(recording: Path) -> list[tuple[str, bool]]:
    """Each finding with whether it is critical. Not those about speed: it is not planted here, and
    other work on the machine may slow down a rank, or all exchanges."""
    return [
        (finding.code, finding.severity is Severity.CRITICAL)
        for finding in list_warnings(diagnose(load_recording(recording)))
        if not finding.code.startswith(("straggler-", "communication-bound"))
    ]


@pytest.mark.parametrize(
    ("name", "fault", "code"),
    [
        ("torch-ddp", "skip-collective:step=30", "failed-exception"),
        ("torch-ddp", "extra-collective:step=30", "hang-collective-mismatch"),
        ("torch-fsdp", "skip-collective:step=30", "hang-collective-mismatch"),
    ],
)
def test_ranks_that_diverge_are_one_finding(
    tmp_path: Path, name: str, fault: str, code: str
) -> None:
    options = ("--model", "cnn-nano", "--device", "cpu", "--steps", "60", "--timeout", "10")
    train = [*DOCTOR, "train", name, "-q", "--dir", str(tmp_path), *options, "--fault", fault]
    assert run_undisturbed(train, tmp_path).code == 1
    assert list_codes(tmp_path) == [(code, True)]
