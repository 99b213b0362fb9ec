"""AMD's GPUs through a pretend `amdsmi` with the shapes of its published interface."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import pytest
from mgpu_probes.outside.devices import Devices, amd_gpus

MIB = 1 << 20


class AmdSmiClkType(enum.Enum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(enum.Enum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(enum.Enum):
    CURRENT = 0


class AmdSmiLibraryError(Exception):
    pass


def denied(*_: Any) -> Any:
    raise AmdSmiLibraryError("AMDSMI_STATUS_NOT_SUPPORTED")


def pretend(**other: Any) -> types.ModuleType:
    """Two MI300X that train; `other`: functions that are different."""
    module = types.ModuleType("amdsmi")
    module.__dict__.update(
        AmdSmiClkType=AmdSmiClkType,
        AmdSmiTemperatureType=AmdSmiTemperatureType,
        AmdSmiTemperatureMetric=AmdSmiTemperatureMetric,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["first", "second"],
        amdsmi_get_gpu_driver_info=lambda _: {"driver_version": "6.10.5"},
        amdsmi_get_gpu_activity=lambda _: {
            "gfx_activity": 97,
            "umc_activity": 41,
            "mm_activity": "N/A",
        },
        amdsmi_get_gpu_vram_usage=lambda _: {"vram_total": 196592, "vram_used": 1000},
        amdsmi_get_power_info=lambda _: {
            "current_socket_power": 712,
            "average_socket_power": "N/A",
            "power_limit": 750,
        },
        amdsmi_get_clock_info=lambda _, kind: {
            "clk": 2100 if kind is AmdSmiClkType.GFX else 1300,
            "max_clk": 2100,
        },
        amdsmi_get_temp_metric=lambda _, place, __: (
            71 if place is AmdSmiTemperatureType.HOTSPOT else denied()
        ),
        amdsmi_get_gpu_asic_info=lambda _: {"market_name": "AMD Instinct MI300X"},
        amdsmi_get_gpu_device_uuid=lambda handle: f"uuid-{handle}",
        amdsmi_get_gpu_device_bdf=lambda _: "0000:c1:00.0",
        amdsmi_get_gpu_process_list=lambda _: [
            {"name": "python", "pid": 42, "mem": 5, "memory_usage": {"vram_mem": 900 * MIB}},
            {"name": "odd", "pid": 1 << 31, "mem": 1},
        ],
        amdsmi_get_gpu_total_ecc_count=lambda _: {
            "correctable_count": 3,
            "uncorrectable_count": 0,
        },
    )
    for name, value in other.items():
        if value is None:
            delattr(module, name)
        else:
            setattr(module, name, value)
    return module


def sample(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    monkeypatch.setattr(amd_gpus, "is_amdsmi_installed", lambda: True)
    devices = Devices(patience=60)
    try:
        return devices.sample()
    finally:
        devices.close()


def test_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    told = sample(monkeypatch, pretend())
    assert told["driver"] == "6.10.5"
    first, second = told["devices"]
    assert (first["index"], second["index"]) == (0, 1)
    assert (first["vendor"], first["name"]) == ("amd", "AMD Instinct MI300X")
    assert second["uuid"] == "uuid-second"
    assert (first["utilization"], first["memory_busy"]) == (0.97, 0.41)
    assert (first["memory_used"], first["memory_total"]) == (1000 * MIB, 196592 * MIB)
    assert (first["power_watts"], first["power_limit_watts"]) == (712, 750)
    assert first["temperature"] == 71
    assert (first["sm_clock_mhz"], first["memory_clock_mhz"]) == (2100, 1300)
    assert first["processes"] == [{"pid": 42, "memory": 900 * MIB, "kind": "compute"}]
    assert first["ecc"]["corrected"] == 3
    assert first["ecc"]["remapped"] is None
    assert (first["nvlinks"], first["trouble"]) == ([], None)


def test_what_is_not_reported_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in vars(pretend()) if name.startswith("amdsmi_get_gpu")]
    lacking: dict[str, Any] = dict.fromkeys(names, denied)
    told = sample(
        monkeypatch,
        pretend(
            **lacking,
            amdsmi_get_clock_info=None,
            amdsmi_get_power_info=lambda _: {"power_limit": "N/A"},
        ),
    )
    device = told["devices"][0]
    known = {name for name, value in device.items() if value not in (None, [], False)}
    assert known == {"vendor", "temperature", "trouble"}
    assert device["trouble"] == "not reported by amdsmi: utilization, memory, processes"


@pytest.mark.parametrize(
    ("limit", "watts"), [(750, 750), (750_000_000, 750), (0xFFFFFFFF, None), (True, None)]
)
def test_the_limit_s_unit_differs_between_versions(
    monkeypatch: pytest.MonkeyPatch, limit: Any, watts: float | None
) -> None:
    module = pretend(amdsmi_get_power_info=lambda _: {"power_limit": limit})
    assert sample(monkeypatch, module)["devices"][0]["power_limit_watts"] == watts


@pytest.mark.parametrize("broken", ["amdsmi_init", "amdsmi_get_processor_handles"])
def test_a_package_without_a_driver_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    told = sample(monkeypatch, pretend(**{broken: denied}))
    assert told["devices"] == []
    assert told["trouble"]


def test_amd_s_gpus_are_numbered_after_nvidia_s(monkeypatch: pytest.MonkeyPatch) -> None:
    from mgpu_probes.outside.devices.nvidia_gpus import NvidiaGpus

    nvidia = {
        "devices": [{"index": 0}, {"index": 1}],
        "trouble": None,
        "driver": "570",
        "events": [],
    }
    monkeypatch.setattr(NvidiaGpus, "sample", lambda _: nvidia)
    told = sample(monkeypatch, pretend())
    assert [device["index"] for device in told["devices"]] == [0, 1, 2, 3]
    assert told["driver"] == "570"
