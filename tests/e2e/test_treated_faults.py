"""`treat` finds the treatment of a known fault within its budget, although nothing names it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.jobs import run, torchrun

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("treatment", ["gc-freeze", "checkpoint-in-background"])
def test_the_treatment_of_a_fault_is_found(treatment: str) -> None:
    """The jobs are those of `benchmarks.treat_jobs`; the trials end when it is shown to help.
    `python -m benchmarks.treat --find all` has six of them, and takes long."""
    ended = run([sys.executable, "-m", "benchmarks.treat", "--find", treatment], 900)
    assert ended.code == 0, ended.out + ended.err
    assert f"{treatment}: found" in ended.out


def test_full_precision_on_a_device_that_is_faster_with_half(pretend_build: Path) -> None:
    """It may change convergence, so it is tried if it is named. Forward and backward take 24 of 26
    ms, and a quarter of that in bfloat16."""
    job = torchrun("pretend_gpus.py", "--build", str(pretend_build), "--tensor-cores",
                 "--steps", "2000", ranks=2)  # fmt: skip
    words = ["--only", "autocast-bf16", "--yes", "--json", "--"]
    ended = run([sys.executable, "-m", "mgpu_doctor", "treat", *words, *job], 900)
    assert ended.code == 0, ended.out + ended.err
    (outcome,) = json.loads(ended.out)["treatments"]
    assert (outcome["verdict"], outcome["switched"]) == ("helps", True)
    assert outcome["saved"]["step_fraction"] > 0.4
