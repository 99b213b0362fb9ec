"""The GPU probe on pretend machines: missing values are unknown, and the rest is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakenvml.fakenvml import LIBRARY, abi, counts, machine
from tests.support.nvml import Libraries, PretendNvml

Reading = dict[str, Any]
Sample = Callable[..., list[Reading]]

V3_LISTS = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3")


def read_scenario(nvml: PretendNvml, tmp_path: Path, scenario: str, **options: Any) -> Reading:
    return nvml.samples(tmp_path / "state", machine(scenario, **options))[0]


def test_the_pretend_library_has_the_layouts_of_the_binding(nvml: PretendNvml) -> None:
    assert abi(nvml.folder / LIBRARY) == []


def test_eight_gpus(nvml: PretendNvml, tmp_path: Path) -> None:
    sample = read_scenario(nvml, tmp_path, "busy", pids=range(101, 117))
    assert sample["trouble"] is None
    devices = sample["devices"]
    assert [device["index"] for device in devices] == list(range(8))
    assert all(device["trouble"] is None for device in devices)
    assert {device["name"] for device in devices} == {"NVIDIA H100 80GB HBM3"}
    assert len({device["uuid"] for device in devices}) == 8
    assert all(0.87 <= device["utilization"] <= 1 for device in devices)
    assert devices[3]["pids"] == [104, 112]
    assert devices[0]["memory_total"] == 81559 << 20
    assert devices[0]["power_limit_watts"] == 700


@pytest.mark.parametrize(
    ("scenario", "trouble", "name"),
    [
        ("lost", "GPU is lost", None),
        ("lost_late", "GPU is lost", "NVIDIA H100 80GB HBM3"),
        ("lost_unknown", "out of reach: Unknown Error", None),
    ],
)
def test_one_lost_gpu_leaves_the_others(
    nvml: PretendNvml, tmp_path: Path, scenario: str, trouble: str, name: str | None
) -> None:
    devices = read_scenario(nvml, tmp_path, scenario, pids=range(101, 109))["devices"]
    lost = devices.pop(3)
    assert lost["trouble"] == trouble
    assert lost["name"] == name
    assert lost["pids"] == []
    assert lost["utilization"] is None
    assert lost["memory_used"] is None
    assert all(d["trouble"] is None and d["utilization"] and d["pids"] for d in devices)


def test_a_gpu_lost_while_watched_keeps_its_name_and_drops_its_processes(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    well, ill = machine("busy", pids=range(101, 109)), machine("lost", pids=range(101, 109))
    before, during, after = nvml.samples(tmp_path / "state", well, ill, well)
    assert before["devices"][3]["pids"] == [104]
    assert during["devices"][3]["trouble"] == "GPU is lost"
    assert during["devices"][3]["uuid"] == before["devices"][3]["uuid"]
    assert during["devices"][3]["pids"] == []
    assert after["devices"][3]["pids"] == [104]
    assert after["devices"][3]["trouble"] is None


def test_nothing_supported_is_unknown_and_never_zero(nvml: PretendNvml, tmp_path: Path) -> None:
    device = read_scenario(nvml, tmp_path, "mute")["devices"][7]
    known = {key for key, value in device.items() if value not in (None, [], False)}
    assert known == {"index", "name", "uuid", "vendor", "trouble"}
    assert device["trouble"].startswith("not supported: ")
    assert "utilization" in device["trouble"]


def test_a_kilowatt(nvml: PretendNvml, tmp_path: Path) -> None:
    device = read_scenario(nvml, tmp_path, "hot")["devices"][0]
    assert (device["power_watts"], device["power_limit_watts"]) == (1000, 1200)


def test_what_keeps_clocks_down_is_reported_by_name(nvml: PretendNvml, tmp_path: Path) -> None:
    devices = read_scenario(nvml, tmp_path, "throttled")["devices"]
    assert devices[0]["clock_reasons"] == []
    assert devices[2]["clock_reasons"] == ["hw_slowdown", "sw_thermal", "hw_thermal"]
    assert devices[5]["clock_reasons"] == ["power_cap"]
    assert {device["max_sm_clock_mhz"] for device in devices} == {1980}
    assert devices[2]["sm_clock_mhz"] < 1000 < devices[5]["sm_clock_mhz"] < 1500
    assert read_scenario(nvml, tmp_path, "h100")["devices"][0]["clock_reasons"] == ["idle"]


def test_clock_reasons_that_nobody_tells_are_unknown(nvml: PretendNvml, tmp_path: Path) -> None:
    fault = ("nvmlDeviceGetCurrentClocks*=NOT_SUPPORTED", "nvmlDeviceGetMaxClockInfo=NOT_SUPPORTED")
    device = read_scenario(nvml, tmp_path, "throttled", fault=fault)["devices"][2]
    assert device["clock_reasons"] is None
    assert device["max_sm_clock_mhz"] is None
    assert device["trouble"] == "not supported: maximum clock, clock event reasons"


def test_mig_has_no_utilization(nvml: PretendNvml, tmp_path: Path) -> None:
    devices = read_scenario(nvml, tmp_path, "mig")["devices"]
    assert devices[0]["utilization"] is None
    assert devices[0]["memory_used"] > 0
    assert devices[0]["trouble"] == "MIG mode; not supported: utilization"
    assert devices[1]["trouble"] is None


def test_unified_memory(nvml: PretendNvml, tmp_path: Path) -> None:
    device = read_scenario(nvml, tmp_path, "unified")["devices"][0]
    assert device["memory_used"] is None
    assert device["memory_total"] is None
    assert device["utilization"] > 0
    assert device["unified_memory"] is True
    assert device["trouble"] == "not supported: power limit"


def test_memory_that_nobody_tells_is_not_unified(nvml: PretendNvml, tmp_path: Path) -> None:
    """The device does not support any query of its memory."""
    device = read_scenario(nvml, tmp_path, "mute")["devices"][0]
    assert device["unified_memory"] is False
    assert "memory" in device["trouble"]


def test_garbage_utilization_is_unknown(nvml: PretendNvml, tmp_path: Path) -> None:
    devices = read_scenario(nvml, tmp_path, "garbage")["devices"]
    assert devices[2]["utilization"] is None
    assert "37100 %" in devices[2]["trouble"]
    assert devices[2]["temperature"] is not None


def test_denied_processes_leave_the_rest(nvml: PretendNvml, tmp_path: Path) -> None:
    device = read_scenario(nvml, tmp_path, "no_permission", pids=range(101, 109))["devices"][0]
    assert device["pids"] == []
    assert device["processes"] == []
    assert device["trouble"] == "Insufficient Permissions: processes, NVLink errors"
    assert len(device["nvlinks"]) == 18
    assert device["utilization"] > 0


@pytest.mark.parametrize(
    ("scenario", "trouble"),
    [
        ("no_driver", "no NVIDIA driver on this machine"),
        ("mismatch", "NVML does not start: RM has detected an NVML/RM version mismatch"),
    ],
)
def test_no_driver_says_so(nvml: PretendNvml, tmp_path: Path, scenario: str, trouble: str) -> None:
    sample = read_scenario(nvml, tmp_path, scenario)
    assert sample["devices"] == []
    assert sample["trouble"] == trouble


def test_no_library_says_so() -> None:
    code = (
        "import ctypes, pynvml\n"
        "def none(*_): raise OSError('no such library')\n"
        "pynvml.CDLL = none\n"
        "from mgpu_probes.outside.devices import Devices\n"
        "print(Devices().sample()['trouble'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "no NVIDIA driver on this machine"


def test_a_driver_that_comes_later_is_found(nvml: PretendNvml, tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "from mgpu_probes.outside.devices import Devices, nvidia_gpus\n"
        "nvidia_gpus.LOOK_SECONDS = nvidia_gpus.RETRY_SECONDS = 0.0\n"
        "devices = Devices(patience=60)\n"
        "print(devices.sample()['trouble'])\n"
        "os.symlink(sys.argv[1], sys.argv[2])\n"
        "print(devices.sample()['trouble'])\n"
        "os.replace(sys.argv[3], os.environ['FAKENVML_STATE'])\n"
        "last = devices.sample()\n"
        "print(last['trouble'], len(last['devices']), last['driver'])\n"
    )
    library, found, state = nvml.folder / LIBRARY, tmp_path / LIBRARY, tmp_path / "state"
    machine("no_driver").write(str(state))
    machine("busy", gpus=2).write(str(tmp_path / "loaded"))
    ended = subprocess.run(
        [sys.executable, "-c", code, str(library), str(found), str(tmp_path / "loaded")],
        env={**nvml.environment(state), "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    none = "no NVIDIA driver on this machine"
    assert ended.stdout.splitlines() == [none, none, "None 2 570.133.20"]


def test_a_first_sample_that_was_begun_earlier_asks_nothing_twice(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    machine("busy", gpus=2).write(str(tmp_path / "state"))

    def asked(begin: str) -> dict[str, int]:
        counted = tmp_path / f"counts{begin}"
        read = (
            "from mgpu_probes.outside.devices import Devices\n"
            f"devices = Devices(patience=60, details=False)\n{begin}\n"
            "assert [one['trouble'] for one in devices.sample()['devices']] == [None, None]\n"
            "devices.close()"
        )
        environment = nvml.environment(tmp_path / "state") | {"FAKENVML_COUNTS": str(counted)}
        subprocess.run([sys.executable, "-c", read], env=environment, check=True)
        return counts(str(counted))

    assert asked("devices.begin()") == asked("")


def test_a_first_sample_in_a_hurry_leaves_the_other_ends_of_nvlinks_to_the_second(
    nvml: PretendNvml, tmp_path: Path
) -> None:
    machine("busy", gpus=1).write(str(tmp_path / "state"))
    read = (
        "from mgpu_probes.outside.devices import Devices\n"
        "devices = Devices(patience=60)\ndevices.begin()\n"
        "for _ in range(2):\n"
        "    (device,) = devices.sample()['devices']\n"
        "    print({(link['up'], link['remote']) for link in device['nvlinks']})\n"
        "devices.close()"
    )
    environment = nvml.environment(tmp_path / "state")
    ended = subprocess.run(
        [sys.executable, "-c", read], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == ["{(True, None)}", "{(True, 'switch')}"]


def test_one_look_asks_less_and_shows_the_same(nvml: PretendNvml, tmp_path: Path) -> None:
    def asked(*, details: bool) -> tuple[dict[str, Any], dict[str, int]]:
        counted = tmp_path / f"counts{details}"
        (sample,) = nvml.samples(
            tmp_path / "state",
            machine("busy", gpus=2),
            details=details,
            environment={"FAKENVML_COUNTS": str(counted)},
        )
        return sample, counts(str(counted))

    (full, all_calls), (short, calls) = asked(details=True), asked(details=False)
    assert "nvmlDeviceGetNvLinkErrorCounter" in all_calls
    assert "nvmlDeviceGetNvLinkErrorCounter" not in calls
    assert sum(calls.values()) < sum(all_calls.values()) / 2
    assert short["topology"] is None
    for quick, detailed in zip(short["devices"], full["devices"], strict=True):
        same = ("name", "uuid", "memory_total", "power_limit_watts", "processes", "ecc", "mig")
        assert [quick[name] for name in same] == [detailed[name] for name in same]
        assert [link["up"] for link in quick["nvlinks"]] == [
            link["up"] for link in detailed["nvlinks"]
        ]
        assert quick["trouble"] is None


def test_a_driver_without_newer_entry_points(libraries: Libraries, tmp_path: Path) -> None:
    newer = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", *V3_LISTS)
    box = machine("busy", pids=range(101, 109))
    (sample,) = libraries.kind(hide=newer).samples(tmp_path / "state", box)
    device = sample["devices"][1]
    assert device["pids"] == [102]
    assert device["clock_reasons"] == []
    # Version 1 counts what the driver keeps for itself (551 MiB) as used.
    assert device["memory_used"] == int(box.gpus[1]["mem_used"]) + (551 << 20)
    assert device["trouble"] is None


def test_a_driver_that_changed_the_process_structure(libraries: Libraries, tmp_path: Path) -> None:
    wide = libraries.kind(defines=("WIDE_PROCESSES",))
    box = machine("busy", gpus=2, pids=range(101, 109))
    (sample,) = wide.samples(tmp_path / "state", box)
    assert sample["devices"][1]["pids"] == [102, 104, 106, 108]
    assert all(process["memory"] < 80 << 30 for process in sample["devices"][1]["processes"])
    assert sample["devices"][1]["trouble"] is None
