"""The GPUs of this machine are examined without a job, and with a job that was not recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.outside import devices, jobs

from mgpu_doctor.api.verb_requests import find_exit_code
from mgpu_doctor.case.placeholders import MACHINE, case_of_machine
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.examine import case_sources, device_watch, live_targets
from mgpu_doctor.report import terminal
from mgpu_doctor.report.verdict import Tone, name_culprits, verdict
from tests.fakenvml.fakenvml import machine
from tests.support.nvml import PretendNvml

HOST = os.uname().nodename
FOUND = {"lost": ("gpu-lost", 3), "throttled": ("gpu-throttled", 2), "ecc": ("gpu-ecc", 1)}


class Recorded:
    """Stands in for the drivers: replays samples."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self._samples = iter(samples)

    def sample(self) -> dict[str, Any]:
        return next(self._samples)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGPU_DOCTOR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(device_watch, "INTERVAL", 0.0)
    monkeypatch.setattr(jobs, "find_all", tuple)


def install(
    monkeypatch: pytest.MonkeyPatch, nvml: PretendNvml, folder: Path, name: str, **options: Any
) -> None:
    """Makes this machine look like a scenario of the pretend NVML library."""
    boxes = [machine(name, **options)] * device_watch.ENOUGH
    samples = nvml.samples(folder / "state", *boxes)
    monkeypatch.setattr(devices, "Devices", lambda stays: Recorded(samples))  # noqa: ARG005


@pytest.mark.parametrize("name", FOUND)
def test_a_defective_gpu_is_found_without_a_job(
    nvml: PretendNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(monkeypatch, nvml, tmp_path, name)
    (case,) = case_sources.load_cases([], lambda _: None)
    diagnosis = diagnose(case)
    code, index = FOUND[name]
    lead = diagnosis.findings[0]
    assert (case.subject.kind, lead.code, lead.severity.value) == (MACHINE, code, "warning")
    assert name_culprits(lead) == f"GPU {index} of {HOST}"
    assert find_exit_code(diagnosis) == 1
    assert verdict(diagnosis).tone is Tone.WARNING
    printed = terminal.render(diagnosis, width=100, colour=False)
    assert "no training job is running" in printed
    assert "rank" not in printed


def test_healthy_gpus_without_a_job_leave_nothing_to_examine(
    nvml: PretendNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, nvml, tmp_path, "busy")
    (case,) = case_sources.load_cases([], lambda _: None)
    diagnosis = diagnose(case)
    assert diagnosis.findings == ()
    assert find_exit_code(diagnosis) == 3
    assert "no GPU is lost or slowed down" in verdict(diagnosis).sentence
    few = diagnose(case_of_machine(HOST, case.device_samples[:3]))
    assert "too slowly to judge" in verdict(few).sentence


def test_a_job_without_a_recording_is_judged_with_its_gpus(
    nvml: PretendNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_targets, "CONFIRM_AFTER", (0.1,))
    monkeypatch.setattr(live_targets, "SAMPLES", 3)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid()), "WORLD_SIZE": "1"}
    program = "import time; print('up', flush=True); time.sleep(100)"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **meeting, "RANK": "0"},
        stdout=subprocess.PIPE,
    ) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            pids = [1, rank.pid, 1, 1, 1, 1, 1, 1]
            install(monkeypatch, nvml, tmp_path, "ecc", pids=pids)
            (case,) = case_sources.load_cases([str(rank.pid)], lambda _: None)
        finally:
            rank.kill()
    (finding,) = (found for found in diagnose(case).findings if found.code == "gpu-ecc")
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(0, rank.pid)]
