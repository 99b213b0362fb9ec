"""The suite itself: without a GPU it fails in one sentence, and what it measures is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.gpu_environment import FOLDER_VARIABLE, RECORDED, ROOT, folder_of
from tests.gpu.gpu_jobs import Figures

pytestmark = pytest.mark.slow


def test_without_a_gpu_it_fails_in_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    hidden = {"CUDA_VISIBLE_DEVICES": "", FOLDER_VARIABLE: str(folder)}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=ROOT,
        env=os.environ | hidden,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1), ended.stderr
    assert "found no GPU" in ended.stderr
    assert not folder.exists()


def test_a_test_that_needs_a_gpu_fails_without_one() -> None:
    """Nobody who asks pytest for them gets a pass, or skipped tests."""
    chosen = ["-m", "gpu", "-k", "torch_sees_no_synchronization", "tests/gpu"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout
    assert "2 errors" in ended.stdout
    assert "skipped" not in ended.stdout


def test_figures_are_kept_by_device_driver_and_torch(tmp_path: Path) -> None:
    device = {"name": "NVIDIA H100 80GB HBM3", "driver": "580.1", "torch": "2.13.0+cu130"}
    assert folder_of(device) == RECORDED / "nvidia-h100-80gb-hbm3-580.1-torch-2.13.0-cu130"
    figures = Figures(tmp_path, device)
    figures.note(step_ms=26.5)
    with pytest.raises(AssertionError, match="measured twice"):
        figures.note(step_ms=1)
    figures.write()
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert kept == {"device": device, "measured": {"step_ms": 26.5}}
