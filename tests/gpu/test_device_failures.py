"""A rank that is killed leaves its device times, and one whose kernel never ends is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mgpu_doctor.case.model import DevicePosition
from mgpu_doctor.case.recording_case import load_recording
from tests.gpu.gpu_jobs import JOBS, Device, Figures, under_doctor
from tests.support.jobs import plain, started, until
from tests.support.observed_jobs import read_ranks

KILLED_AT, ENDLESS_AT = 60, 5
LONG_STEPS = "12"
"""The scale at which steps take 300 ms: all of them are timed."""


def test_what_was_timed_before_sigkill_is_readable(device: Device, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    options = ("--strategy", "single", "--killed-at", str(KILLED_AT))
    ended = device.run(*options, doctor=under_doctor(recording))
    assert ended.code != 0
    (rank,) = load_recording(recording).ranks
    assert rank.signal == 9
    assert len(rank.steps) >= KILLED_AT - 5
    assert rank.device_times is not None
    assert len(rank.device_times) >= 5


def diagnose(pid: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "mgpu_doctor", "diagnose", str(pid), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    diagnosis: dict[str, Any] = json.loads(done.stdout)
    return diagnosis


def test_the_rank_whose_kernel_never_ends_is_named(
    device: Device, figures: Figures, tmp_path: Path
) -> None:
    """Both hosts wait for their devices, and rank 0's waits for rank 1's, which works for ever."""
    recording = tmp_path / "recording"
    options = ("--scale", LONG_STEPS, "--group", "streams", "--reads-loss")
    endless = ("--endless", f"1:backward:{ENDLESS_AT}")
    job = plain(str(JOBS / "device_training.py"), *device.options, *options, *endless, ranks=2)

    def have_not_moved() -> bool:
        """Whether no device has passed a mark for longer than the rule asks for."""
        places = [rank.device_position for rank in read_ranks(recording)]
        seconds = [at.seen - at.since for at in places if isinstance(at, DevicePosition)]
        return len(seconds) == 2 and min(seconds) > 11

    with started([*under_doctor(recording), *job]) as process:
        until(lambda: have_not_moved() or process.poll() is not None, 90)
        assert process.poll() is None, process.communicate()
        pid = load_recording(recording).ranks[0].pid
        assert pid is not None
        findings = diagnose(pid)["findings"]
        assert process.poll() is None, "looking at a job does not end it"
    figures.keep("ddp-endless-backward", recording)
    (finding,) = (each for each in findings if each["severity"] != "info")
    assert finding["code"] == "hang-rank-behind"
    assert [culprit["rank"] for culprit in finding["culprits"]] == [1]
    assert (finding["victims"], finding["since_step"]) == ([0], ENDLESS_AT)
