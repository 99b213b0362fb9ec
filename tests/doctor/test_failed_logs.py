"""Console logs of jobs that really failed: the right code and the right rank from the text alone.

Recorded with torch 2.13 on two ranks under torchrun (gloo), or plain Python where no rank is named;
folders and user are made neutral.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mgpu_doctor.case.log_case import load_logs
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Finding

FAILED = Path(__file__).parents[1] / "recorded" / "console" / "failed"


def first_finding(name: str) -> Finding:
    findings = diagnose(load_logs([str(FAILED / f"{name}.log")])).findings
    assert findings, "the log says nothing"
    return findings[0]


@pytest.mark.parametrize(
    ("name", "code", "ranks"),
    [
        ("unused-parameters", "failed-unused-parameters", {0, 1}),
        ("backward-twice", "failed-reentrant-backward", {0, 1}),
        ("shape-on-rank-1", "failed-shape-mismatch", {1}),
        ("nan-on-rank-1", "loss-nan", {1}),
        ("loader-killed", "failed-dataloader-worker", {1}),
        ("loader-sizes", "failed-shape-mismatch", {0, 1}),
        ("checkpoint-size", "failed-checkpoint", {0, 1}),
        ("checkpoint-damaged", "failed-checkpoint", {0}),
    ],
)
def test_the_rank_that_failed_is_named(name: str, code: str, ranks: set[int]) -> None:
    finding = first_finding(name)
    assert finding.code == code
    assert {culprit.rank for culprit in finding.culprits} == ranks


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("collective-mismatch", "hang-collective-mismatch"),
        ("disk-full", "failed-disk-full"),
        ("main-guard", "failed-main-guard"),
        ("no-launcher", "failed-rendezvous"),
        ("port-in-use", "failed-port-in-use"),
        ("spawn-lambda", "failed-spawn-pickling"),
    ],
)
def test_the_cause_is_named(name: str, code: str) -> None:
    assert first_finding(name).code == code


def test_who_only_waited_is_not_blamed() -> None:
    """Rank 1 slept; all that is printed is rank 0's time-out."""
    finding = first_finding("rank-behind")
    assert finding.code == "failed-gloo"
    assert finding.culprits == ()
