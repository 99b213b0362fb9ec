"""Real trainers with ranks that do something else than the others (same data, other
collectives)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnose import diagnose
from mgpu_doctor.findings import Severity
from tests.support.examining import loud, run_calmly

pytestmark = [pytest.mark.slow, pytest.mark.untimed]


def run_fault(
    folder: Path, name: str, fault: str, *options: str
) -> tuple[int, list[tuple[str, bool]]]:
    """The exit code of the job, and each finding with whether it is critical. Not the stragglers:
    how fast its ranks are is not planted here, and a neighbour of the machine may slow one down."""
    doctor = [
        sys.executable,
        "-m",
        "mgpu_doctor",
        "train",
        name,
        "-q",
        "--dir",
        str(folder / "job"),
    ]
    options = ("--model", "cnn-nano", "--device", "cpu", "--fault", fault, *options)
    ended = run_calmly([*doctor, *options], folder / "job")
    diagnosis = diagnose(load_recording(folder / "job"))
    findings = [
        (finding.code, finding.severity is Severity.CRITICAL)
        for finding in loud(diagnosis)
        if not finding.code.startswith("straggler-")
    ]
    return ended.code, findings


@pytest.mark.parametrize(
    ("name", "fault", "code"),
    [
        ("torch-localsgd", "same-data", "data-duplicated"),
        ("torch-ddp", "diverge:step=40", "replicas-diverged"),
    ],
)
def test_a_job_that_learns_less_than_it_seems_to(
    tmp_path: Path, name: str, fault: str, code: str
) -> None:
    assert run_fault(tmp_path, name, fault, "--steps", "120") == (0, [(code, False)])


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
    ended = run_fault(tmp_path, name, fault, "--steps", "60", "--timeout", "10")
    assert ended == (1, [(code, True)])
