"""`treat` finds the treatment of a known fault within its budget, without being told which."""

from __future__ import annotations

import sys

import pytest

from tests.support.jobs import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("treatment", "finding"),
    [
        ("loader-workers", "input-bound"),
        ("ddp-no-search", "unused-parameter-scan"),
        ("ddp-no-sync", "accumulation-syncs"),
        ("gc-freeze", "gc-pauses"),
        ("threads", "cpu-oversubscribed"),
        ("checkpoint-in-background", "checkpoint-stall"),
    ],
)
def test_the_treatment_of_a_fault_is_found(treatment: str, finding: str) -> None:
    """The jobs are those of `benchmarks.treat_jobs`; the trials end when it is shown to help."""
    ended = run([sys.executable, "-m", "benchmarks.treat", "--find", treatment], 900)
    assert ended.code == 0, ended.out + ended.err
    assert f"{treatment}: found" in ended.out
    assert finding in ended.out
