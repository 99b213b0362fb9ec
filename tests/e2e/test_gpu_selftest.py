"""`mgpu-doctor check --gpu` on a pretend GPU, whose time is exactly what its operations charge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pretend_accelerator import make_autoload

pytestmark = [pytest.mark.slow, pytest.mark.untimed]

NS_PER_BYTE = 8.0
"""A product of 64 × 64 numbers takes 0.4 ms: the host runs far ahead."""


def check(folder: Path, build: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON."""
    autoload = make_autoload(folder / "autoload", build, NS_PER_BYTE)
    done = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "check", "--gpu", "--json"],
        env=os.environ | {"PYTHONPATH": str(autoload), "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_all_that_can_be_tested_passes(tmp_path: Path, pretend_build: Path) -> None:
    code, report = check(tmp_path, pretend_build)
    levels = {each["id"]: each["level"] for each in report["checks"]}
    assert code == 0, report
    assert [name for name, level in levels.items() if level == "note"] == [
        "gpu-device",
        "gpu-kernels",
        "gpu-synchronizations",
    ], "torch's profiler knows nothing of a pretend device; the rest can be tested"
    measured = report["measured"]
    for kind in ("forward", "stream"):
        planted, seen = (measured[f"slow_{kind}_{what}_seconds"] for what in ("planted", "seen"))
        assert seen == pytest.approx(planted, abs=50e-6)
        assert planted > 1e-3


def test_a_device_that_is_not_timed_is_reported(tmp_path: Path, pretend_build: Path) -> None:
    code, report = check(tmp_path, pretend_build, CUDA_DEVICE_MAX_CONNECTIONS="1")
    wrong = [each["id"] for each in report["checks"] if each["level"] == "fail"]
    assert (code, wrong) == (1, ["gpu-timed-steps"])
