"""What the device clock costs, and whether `check --gpu` passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess.device_clock import FREE_NS

from tests.gpu.gpu_jobs import CUDA, PRETEND, Device, Figures
from tests.support.pretend_accelerator import make_autoload

MOST_TO_RECORD = 3e-6
"""Seconds: what the design of the clock allows."""
LENGTHS = {"104 ms": (4.0, 60, 0.0005), "1 ms": (0.04, 2_000, 0.002)}
"""Of a step: the scale of its work, how many steps, and the share of time that timing may take."""
NS_PER_BYTE = 8.0
"""A product of 64 × 64 numbers takes 0.4 ms: the host runs far ahead."""


def check(device: Device, folder: Path, **variables: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the JSON of `mgpu-doctor check --gpu`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
    if device.kind == PRETEND:
        assert device.build is not None
        autoload = make_autoload(folder / "autoload", device.build, NS_PER_BYTE)
        theirs = environment.get("PYTHONPATH", "")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(autoload), theirs)))
    done = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "check", "--gpu", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_self_test_passes(device: Device, figures: Figures, tmp_path: Path) -> None:
    code, report = check(device, tmp_path)
    assert code == 0, report
    noted = {each["id"] for each in report["checks"] if each["level"] == "note"}
    if device.kind == CUDA:
        assert noted == {"gpu-device"}, report
    else:
        untraced = {"gpu-kernels", "gpu-synchronizations"}
        assert noted == {"gpu-device", *untraced}, "torch's profiler records no pretend kernels"
    measured = report["measured"]
    figures.note(self_test=measured)
    for kind in ("forward", "stream"):
        planted, seen = (measured[f"slow_{kind}_{what}_seconds"] for what in ("planted", "seen"))
        assert seen == pytest.approx(planted, abs=max(50e-6, 0.02 * planted))
        assert planted > 1e-3


def test_a_device_that_is_not_timed_is_reported(device: Device, tmp_path: Path) -> None:
    code, report = check(device, tmp_path, CUDA_DEVICE_MAX_CONNECTIONS="1")
    wrong = [each["id"] for each in report["checks"] if each["level"] == "fail"]
    assert code == 1
    assert set(wrong) - {"gpu-run-ahead"} == {"gpu-timed-steps"}, "a busy host may not run ahead"


def test_recording_an_event_is_cheap(device: Device, figures: Figures) -> None:
    costs = device.run_script("event_costs.py")["costs"]
    figures.note(event_cost_seconds=costs)
    assert all(0 < cost < 1e-2 for cost in costs.values())
    if device.kind == CUDA:
        assert costs["record"] <= MOST_TO_RECORD
        assert "memory_statistics" in costs


def check_cost(device: Device, figures: Figures, folder: Path, length: str) -> None:
    """By the probe's own count, beyond what it may spend once at the beginning. How long the bare
    job takes is noted beside it: a difference of a thousandth cannot be judged by one pair."""
    scale, steps, share = LENGTHS[length]
    count = steps if device.kind == CUDA else steps // 10
    lengths = ("--scale", str(scale), "--steps", str(count))
    options = ("--strategy", "single", *lengths, "--usual-limit")
    bare = device.train(*options, "--reports-cost")[0]
    job = device.watch(folder, *options, "--reports-cost")
    probed, cost = job.reports[0], job.ranks[0].probe_cost
    assert bare["clock_seconds"] is None
    spent = probed["clock_seconds"]
    figures.note(
        **{
            f"cost of steps of {length}": {
                "bare_seconds": bare["seconds"],
                "probed_seconds": probed["seconds"],
                "clock_seconds": spent,
                "probe_seconds": cost,
            }
        }
    )
    assert spent > 0
    assert cost is not None
    if device.kind == CUDA:  # a busy machine without one charges its waits to the clock
        assert spent - FREE_NS * 1e-9 <= share * probed["seconds"]


def test_the_clock_costs_at_most_its_share_of_short_steps(
    device: Device, figures: Figures, tmp_path: Path
) -> None:
    check_cost(device, figures, tmp_path, "1 ms")


def test_the_clock_costs_at_most_its_share_of_long_steps(
    gpu: Device, figures: Figures, tmp_path: Path
) -> None:
    check_cost(gpu, figures, tmp_path, "104 ms")
