"""The GPU probe with a driver that is slow, hangs, fails at times, is old, or denies access."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakenvml.fakenvml import counts, machine
from tests.fakenvml.scenarios import SCENARIOS
from tests.support.nvml import Libraries, PretendNvml

NEVER = 3600 * 1_000_000
"""Microseconds."""
NEWER = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetFieldValues",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetTopologyCommonAncestor",
)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "slow" else []) for name in SCENARIOS],
)
def test_every_machine_is_read_to_valid_json(
    nvml: PretendNvml, tmp_path: Path, scenario: str
) -> None:
    box = machine(scenario, pids=range(101, 117))
    first, second = nvml.samples(tmp_path / "state", box, box)
    assert len(first["devices"]) == len(second["devices"])
    assert first["trouble"] or first["devices"]
    for sample in (first, second):
        json.dumps(sample, allow_nan=False)
        for device in sample["devices"]:
            assert device["utilization"] is None or 0 <= device["utilization"] <= 1
            assert device["trouble"] is None or device["trouble"].count("\n") == 0


@pytest.mark.parametrize("scenario", ["busy", "lost", "ecc"])
def test_sixty_four_gpus(nvml: PretendNvml, tmp_path: Path, scenario: str) -> None:
    box = machine(scenario, gpus=64, pids=range(101, 165))
    (sample,) = nvml.samples(tmp_path / "state", box)
    assert [device["index"] for device in sample["devices"]] == list(range(64))
    well = [device for device in sample["devices"] if device["trouble"] is None]
    assert len(well) == (63 if scenario == "lost" else 64)
    assert all(len(one["nvlinks"]) == 18 and one["pids"] for one in well)


def test_no_gpu(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("h100", gpus=1)
    box.gpus.clear()
    (sample,) = nvml.samples(tmp_path / "state", box)
    assert sample["devices"] == []
    assert sample["trouble"] == "the NVIDIA driver shows no GPU"


@pytest.mark.slow
def test_a_driver_that_hangs_does_not_hold_the_caller(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("busy", gpus=2, latency=(f"nvmlDeviceGetTemperature={NEVER}",))
    first, second = nvml.samples(tmp_path / "state", box, box, patience=0.2)
    for sample in (first, second):
        assert sample["devices"][0]["temperature"] is None
        assert "not read yet: the driver is slow" in sample["devices"][0]["trouble"]
        assert "temperature" in sample["devices"][0]["trouble"]


@pytest.mark.slow
def test_a_call_that_never_returns_leaves_what_is_asked_apart(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    """PCIe traffic blocks by design: whoever hangs in it is not waited for."""
    box = machine("busy", gpus=2, latency=(f"nvmlDeviceGetPcieThroughput={NEVER}",))
    _, second, third = nvml.samples(tmp_path / "state", box, box, box)
    for sample in (second, third):
        assert [device["trouble"] for device in sample["devices"]] == [None, None]
        assert sample["devices"][1]["utilization"] > 0
        assert sample["devices"][1]["pcie"]["sent"] is None
        assert sample["devices"][1]["pcie"]["generation"] == 5


@pytest.mark.slow
def test_fifty_milliseconds_a_call_fill_in_by_and_by(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("consumer", gpus=1, latency=("*=50000",))
    (sample,) = nvml.samples(tmp_path / "state", box, last="settled", patience=0)
    device = sample["devices"][0]
    assert device["memory_used"] > 0
    assert device["fan"] == 0.3
    assert device["trouble"] is None


def test_a_call_that_fails_now_and_then_says_so(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("busy", gpus=64, fault=("nvmlDeviceGetT*=UNKNOWN 0.5",))
    (sample,) = nvml.samples(tmp_path / "state", box)
    ill = [device for device in sample["devices"] if device["temperature"] is None]
    assert 0 < len(ill) < 64
    assert all("temperature" in one["trouble"] for one in ill)
    assert all(device["utilization"] is not None for device in sample["devices"])


@pytest.mark.parametrize(
    "name",
    [
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlEventSetWait_v2",
    ],
)
@pytest.mark.slow
def test_each_missing_entry_point_costs_only_what_it_reported(
    libraries: Libraries, tmp_path: Path, name: str
) -> None:
    box = machine("busy", gpus=2, pids=range(101, 105))
    first, second = libraries.kind(hide=(name,)).samples(tmp_path / "state", box, box)
    for sample in (first, second):
        for device in sample["devices"]:
            assert device["trouble"] is None
            assert device["utilization"] > 0
            assert device["memory_used"] > 0
            assert len(device["pids"]) == 2


def test_an_old_driver_lacks_all_that_is_newer(libraries: Libraries, tmp_path: Path) -> None:
    box = machine("busy", gpus=2, pids=range(101, 105))
    first, second = libraries.kind(hide=NEWER).samples(tmp_path / "state", box, box)
    device = second["devices"][0]
    assert device["trouble"] is None
    assert device["mig"] is None
    assert device["nvlink_sent"] is None
    assert device["ecc"]["corrected"] == 0
    assert first["topology"]["levels"] == [["SELF", "?"], ["?", "SELF"]]


def test_an_older_binding_lacks_names(nvml: PretendNvml, tmp_path: Path) -> None:
    """A `pynvml` without functions that came later: as if the driver had none of them."""
    (tmp_path / "older").mkdir()
    names = [name for name in NEWER if not name.endswith(("_v2", "FieldValues"))]
    (tmp_path / "older/sitecustomize.py").write_text(
        f"import pynvml\nfor name in {names!r}:\n    pynvml.__dict__.pop(name, None)\n"
    )
    (sample,) = nvml.samples(
        tmp_path / "state",
        machine("busy", gpus=2, pids=range(101, 105)),
        environment={"PYTHONPATH": str(tmp_path / "older")},
    )
    device = sample["devices"][0]
    assert device["trouble"] is None
    assert device["pids"] == [101, 103]
    assert device["clock_reasons"] == []
    assert device["mig"] is None


def test_a_gpu_that_is_lost_comes_back_with_all_it_had(nvml: PretendNvml, tmp_path: Path) -> None:
    well = machine("busy", gpus=4, pids=range(101, 105))
    ill = machine("lost_late", gpus=4, pids=range(101, 105))
    before, during, after = nvml.samples(tmp_path / "state", well, ill, well, last="settled")
    lost = during["devices"][3]
    assert lost["trouble"] == "GPU is lost"
    assert (lost["name"], lost["bus_id"]) == (
        before["devices"][3]["name"],
        before["devices"][3]["bus_id"],
    )
    told = {name for name, value in lost.items() if value not in (None, [], False)}
    assert told == {"index", "vendor", "name", "uuid", "bus_id", "trouble"}
    assert after["devices"][3]["processes"] == before["devices"][3]["processes"]
    assert len(after["devices"][3]["nvlinks"]) == 18


def test_a_gpu_that_vanishes_from_the_list_is_not_shown(nvml: PretendNvml, tmp_path: Path) -> None:
    boxes = machine("busy", gpus=4), machine("busy", gpus=2), machine("busy", gpus=4)
    samples = nvml.samples(tmp_path / "state", *boxes)
    assert [len(sample["devices"]) for sample in samples] == [4, 2, 4]
    assert all(device["trouble"] is None for device in samples[2]["devices"])


def test_what_never_changes_is_asked_once_and_nothing_is_changed(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    box = machine("busy", gpus=2)
    told = tmp_path / "counts"
    nvml.samples(tmp_path / "state", *[box] * 10, environment={"FAKENVML_COUNTS": str(told)})
    asked = counts(str(told))
    for once in ("Name", "UUID", "PciInfo_v3", "CpuAffinity", "MaxPcieLinkGeneration"):
        assert asked[f"nvmlDeviceGet{once}"] == 2
    assert asked["nvmlDeviceGetUtilizationRates"] == 20
    assert asked["nvmlDeviceGetHandleByIndex_v2"] == 2
    changing = [name for name in asked if "Set" in name.removeprefix("nvmlEventSet")]
    assert changing == []


def test_xids_are_heard_as_they_happen(nvml: PretendNvml, tmp_path: Path) -> None:
    quiet, loud = machine("busy", gpus=4), machine("busy", gpus=4)
    loud.event(2, "xid", 79)
    *_, heard = nvml.samples(tmp_path / "state", quiet, quiet, loud, last="events")
    (event,) = heard["events"]
    assert (event["index"], event["number"]) == (2, 79)
    assert event["at"] > 1.6e9
    assert heard["events_trouble"] is None


def test_who_stays_hears_xids_from_the_first_sample_on(nvml: PretendNvml, tmp_path: Path) -> None:
    quiet, loud = machine("busy", gpus=2), machine("busy", gpus=2)
    loud.event(1, "xid", 79)
    _, heard = nvml.samples(tmp_path / "state", quiet, loud, last="events", stays=True)
    assert [event["number"] for event in heard["events"]] == [79]


def test_xids_that_are_denied_have_a_reason(nvml: PretendNvml, tmp_path: Path) -> None:
    box = machine("no_permission")
    *_, last = nvml.samples(tmp_path / "state", box, box)
    assert last["events"] == []
    assert last["events_trouble"] == "XIDs cannot be received: Insufficient Permissions"
