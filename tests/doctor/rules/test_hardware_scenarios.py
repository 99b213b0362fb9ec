"""Rules about hardware end to end: the real probe reads the pretend NVML library, a recording's
file lies between, and the diagnosis names the right GPU and the rank on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from mgpu_doctor.case.device_samples import DeviceReader
from mgpu_doctor.findings import Severity
from tests.fakenvml.fakenvml import machine
from tests.support.hardware import FIRST_PID, accused, hardware, sampled, scenario
from tests.support.nvml import PretendNvml

FOUND = {
    "throttled": {("gpu-throttled", 2)},
    "ecc": {("gpu-ecc", 1)},
    "ecc_retired": {("gpu-ecc", 1)},
    "pcie_degraded": {("pcie-degraded", 7)},
}
"""Scenario -> what is wrong with which rank's GPU."""
SILENT = (
    "busy",
    "container",
    "consumer",
    "flaky",
    "garbage",
    "h100",
    "hot",
    "hung",
    "mig",
    "mute",
    "no_driver",
    "no_permission",
    "orphan",
    "straggler",
    "unified",
)
PIDS = range(FIRST_PID, FIRST_PID + 8)


@pytest.mark.parametrize("name", FOUND)
def test_the_right_gpu_and_rank(nvml: PretendNvml, tmp_path: Path, name: str) -> None:
    case = scenario(nvml, tmp_path, name)
    assert accused(case) == FOUND[name]


@pytest.mark.parametrize("name", SILENT)
def test_the_rest_is_silent(nvml: PretendNvml, tmp_path: Path, name: str) -> None:
    count = {"consumer": 4, "unified": 1}.get(name, 8)
    assert [
        finding.title for finding in hardware(scenario(nvml, tmp_path, name, ranks=count))
    ] == []


@pytest.mark.parametrize("how", ["lost", "lost_unknown", "lost_late"])
def test_a_gpu_that_falls_off_the_bus(nvml: PretendNvml, tmp_path: Path, how: str) -> None:
    case = scenario(nvml, tmp_path, "busy", how)
    (finding,) = [found for found in hardware(case) if found.severity is not Severity.INFO]
    assert (finding.code, finding.severity) == ("gpu-lost", Severity.CRITICAL)
    (culprit,) = finding.culprits
    assert (culprit.rank, culprit.device, culprit.pid) == (3, "cuda:3", FIRST_PID + 3)
    assert "GPU 3 of rank 3" in finding.title
    assert finding.victims == (0, 1, 2, 4, 5, 6, 7)


def test_a_gpu_that_is_lost_once_recovers(nvml: PretendNvml, tmp_path: Path) -> None:
    case = scenario(nvml, tmp_path, "busy", "lost", "busy")
    quiet = [structs.replace(sample, events=()) for sample in case.device_samples]
    assert hardware(replace(case, device_samples=tuple(quiet))) == []


def test_links_that_are_down_and_links_with_errors(nvml: PretendNvml, tmp_path: Path) -> None:
    now, later = machine("nvlink_down", pids=PIDS), machine("nvlink_down", pids=PIDS)
    later.epoch = now.epoch - 60
    found = {
        finding.culprits[0].rank: finding
        for finding in hardware(sampled(nvml, tmp_path, [now, later]))
    }
    assert {one.code for one in found.values()} == {"nvlink-down"}
    assert found.keys() == {0, 4}
    assert "6 NVLinks are down" in found[4].title
    assert "errors rise on link 7" in found[0].title


def test_an_xid_that_is_heard_names_the_rank(nvml: PretendNvml, tmp_path: Path) -> None:
    broken = machine("busy", pids=PIDS)
    broken.event(5, "xid", 119)
    quiet = machine("busy", pids=PIDS)
    heard = nvml.samples(tmp_path / "heard", quiet, quiet, broken, last="events")[-1]
    events = DeviceReader().read(heard)
    assert events is not None
    case = scenario(nvml, tmp_path, "busy")
    *before, last = case.device_samples
    at = last.at - 5
    told = tuple(structs.replace(event, at=at) for event in events.events)
    (finding,) = hardware(
        replace(case, device_samples=(*before, structs.replace(last, events=told)))
    )
    assert finding.code == "gpu-xid"
    assert [culprit.rank for culprit in finding.culprits] == [5]
    assert "XID 119 on the GPU at 0000:ab:00.0" in finding.cause


@pytest.mark.slow
def test_sixty_four_gpus(nvml: PretendNvml, tmp_path: Path) -> None:
    case = scenario(nvml, tmp_path, "throttled", ranks=64, gpus=64)
    assert accused(case) == {("gpu-throttled", 2)}
