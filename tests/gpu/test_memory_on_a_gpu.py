"""`plan` against the peaks of real steps, and what is said when a GPU's memory ran out."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from tests.gpu.gpu_jobs import CUDA, JOBS, Device, Figures, under_doctor
from tests.support.jobs import plain, run
from tests.support.observed_jobs import find_finding

CASES = [
    f"{model}:{batch}:{how}"
    for model in ("gpt2-small", "resnet50")
    for batch in (4, 16)
    for how in ("fp32:none", "bf16:none", "bf16:full")
]
SMALL = ["gpt-nano:4:fp32:none", "gpt-nano:4:fp32:full"]
"""What the pretend device trains in seconds; it has no statistics of its memory."""
MOST_ALLOCATED, MOST_RESERVED = 0.02, 0.03
"""Median errors."""
AT_ONCE = 6


def plan(case: str) -> dict[str, Any]:
    """The prediction for one case."""
    model, batch, precision, checkpointing = case.split(":")
    options = ["--batch", batch, "--precision", precision, "--checkpointing", checkpointing]
    ended = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "plan", model, *options, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout, ended.stderr
    prediction: dict[str, Any] = json.loads(ended.stdout)["prediction"]
    return prediction


def test_plans_are_near_the_peaks_of_real_steps(device: Device, figures: Figures) -> None:
    cases = CASES if device.kind == CUDA else SMALL
    real = device.run_script("step_memory.py", *cases)["cases"]
    with ThreadPoolExecutor(AT_ONCE if device.kind == CUDA else 1) as pool:
        planned = dict(zip(cases, pool.map(plan, cases), strict=True))
    assert all(each["loss"] == each["loss"] for each in real.values()), "a loss is no number"
    errors: dict[str, dict[str, float]] = {"allocated": {}, "reserved": {}}
    for case in cases:
        for what, by_case in errors.items():
            if real[case][what] is not None:
                by_case[case] = planned[case][f"peak_{what}"] / real[case][what] - 1
    figures.note(plan_errors=errors)
    full, none = (planned[case]["peak_allocated"] for case in (cases[-1], cases[-2]))
    assert full < none, "checkpointing saves memory"
    if device.kind == CUDA:
        assert median(map(abs, errors["allocated"].values())) <= MOST_ALLOCATED
        assert median(map(abs, errors["reserved"].values())) <= MOST_RESERVED


@pytest.mark.parametrize(
    ("how", "code"), [("full", "oom-device"), ("fragmented", "oom-fragmentation")]
)
def test_a_gpu_whose_memory_ran_out_is_named(
    gpu: Device, tmp_path: Path, how: str, code: str
) -> None:
    assert gpu.kind == CUDA
    recording = tmp_path / "recording"
    job = plain(str(JOBS / "out_of_memory.py"), how, ranks=1)
    ended = run([*under_doctor(recording), *job])
    assert ended.code != 0
    finding = find_finding(diagnose(load_recording(recording)), code)
    assert finding is not None
    assert finding.fixes
