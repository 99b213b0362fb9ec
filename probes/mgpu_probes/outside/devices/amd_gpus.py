"""AMD GPUs through the `amdsmi` package, if it is installed (it comes with ROCm).

Written from its published interface. A value that is missing, `N/A` or no number is unknown."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

from mgpu_probes.outside.devices.device_fields import join_part, make_unknown_device
from mgpu_probes.outside.devices.driver_polling import Json, PollingThread
from mgpu_probes.outside.devices.nvml_queries import MOST_PROCESS_MEMORY, PID_LIMIT

MEBIBYTE = 1 << 20
_MOST_WATTS = 1e5
"""A larger limit is in microwatts: its unit has changed between versions."""
_ABSENT = 0xFFFFFFFF
"""The library's value of unsupported members."""


def is_amdsmi_installed() -> bool:
    return PathFinder.find_spec("amdsmi") is not None


class AmdGpus:
    """All GPUs of amdsmi, read in a separate thread."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._smi: Any = None
        self._handles: list[Any] = []
        self._driver: str | None = None
        self._devices: list[Json] = []
        self._rounds = PollingThread(self._read, "amdsmi") if is_amdsmi_installed() else None

    def sample(self) -> list[Json]:
        """A reading per device, numbered from 0; empty without amdsmi or a driver."""
        if self._rounds is not None:
            self._rounds.wait(self._rounds.ask(), self._patience)
        return [dict(device) for device in self._devices]

    @property
    def driver(self) -> str | None:
        return self._driver

    def close(self) -> None:
        if self._rounds is not None and self._rounds.stop(self._patience) and self._smi is not None:
            _tried(self._smi.amdsmi_shut_down)
            self._smi = None

    def _read(self) -> None:
        if self._smi is None and not self._start():
            return
        self._devices = [
            _device(self._smi, index, handle) for index, handle in enumerate(self._handles)
        ]

    def _start(self) -> bool:
        """Whether amdsmi started. Without a driver, its import or start fails."""
        smi = _tried(lambda: importlib.import_module("amdsmi"))
        if smi is None:
            return False
        try:
            smi.amdsmi_init()
            self._handles = list(smi.amdsmi_get_processor_handles())
        except Exception:  # its exceptions differ from version to version
            return False
        self._smi = smi
        if self._handles:
            values = _object(_tried(lambda: smi.amdsmi_get_gpu_driver_info(self._handles[0])))
            self._driver = _text(values.get("driver_version"))
        return True


def _device(smi: Any, index: int, handle: Any) -> Json:
    troubles: list[str] = []

    def ask(what: str, name: str, *more: Any) -> Json:
        value = _tried(lambda: getattr(smi, name)(handle, *more))
        if value is None:
            troubles.append(what)
        return _object(value)

    activity = ask("utilization", "amdsmi_get_gpu_activity")
    memory = ask("memory", "amdsmi_get_gpu_vram_usage")
    power = ask("power", "amdsmi_get_power_info")
    clock = _object(_tried(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)))
    memory_clock = _object(_tried(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.MEM)))
    asic = _object(_tried(lambda: smi.amdsmi_get_gpu_asic_info(handle)))
    processes = _processes(_tried(lambda: smi.amdsmi_get_gpu_process_list(handle)))
    if processes is None:
        troubles.append("processes")
    return {
        **make_unknown_device(index, "amd"),
        "name": _text(asic.get("market_name")),
        "uuid": _text(_tried(lambda: smi.amdsmi_get_gpu_device_uuid(handle))),
        "bus_id": _text(_tried(lambda: smi.amdsmi_get_gpu_device_bdf(handle))),
        "utilization": _share(activity.get("gfx_activity")),
        "memory_busy": _share(activity.get("umc_activity")),
        **_memory(memory),
        "power_watts": _first(power, "current_socket_power", "average_socket_power"),
        "power_limit_watts": _watts(power.get("power_limit")),
        "temperature": _temperature(smi, handle),
        "sm_clock_mhz": _first(clock, "clk", "cur_clk"),
        "max_sm_clock_mhz": _number(clock.get("max_clk")),
        "memory_clock_mhz": _first(memory_clock, "clk", "cur_clk"),
        "ecc": _ecc(_object(_tried(lambda: smi.amdsmi_get_gpu_total_ecc_count(handle)))),
        "pids": [process["pid"] for process in processes or []],
        "processes": processes or [],
        "trouble": f"not reported by amdsmi: {', '.join(troubles)}" if troubles else None,
    }


def _tried(call: Callable[[], Any]) -> Any:
    """The call's result; None if it fails: exceptions and names differ between versions."""
    try:
        return call()
    except Exception:
        return None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < _ABSENT else None


def _first(values: Json, *names: str) -> float | None:
    """The first known value: products report different names."""
    return next((known for name in names if (known := _number(values.get(name))) is not None), None)


def _share(value: Any) -> float | None:
    percent = _number(value)
    return percent / 100 if percent is not None and percent <= 100 else None


def _watts(value: Any) -> float | None:
    limit = _number(value)
    return limit / 1e6 if limit is not None and limit > _MOST_WATTS else limit


def _memory(values: Json) -> Json:
    used, total = _number(values.get("vram_used")), _number(values.get("vram_total"))
    if used is None or total is None or used > total:
        return {}
    return {"memory_used": int(used) * MEBIBYTE, "memory_total": int(total) * MEBIBYTE}


def _temperature(smi: Any, handle: Any) -> float | None:
    """Degrees Celsius at the hottest point: data-center products have no edge sensor."""
    for place in ("HOTSPOT", "EDGE"):
        value = _number(
            _tried(
                lambda place=place: smi.amdsmi_get_temp_metric(  # type: ignore[misc]
                    handle,
                    smi.AmdSmiTemperatureType[place],
                    smi.AmdSmiTemperatureMetric.CURRENT,
                )
            )
        )
        if value is not None:
            return value
    return None


def _ecc(values: Json) -> Json | None:
    corrected = _number(values.get("correctable_count"))
    uncorrected = _number(values.get("uncorrectable_count"))
    return join_part(
        "ecc",
        {
            "corrected": None if corrected is None else int(corrected),
            "uncorrected": None if uncorrected is None else int(uncorrected),
        },
    )


def _processes(value: Any) -> list[Json] | None:
    if not isinstance(value, (list, tuple)):
        return None
    processes: dict[int, Json] = {}
    for entry in value:
        pid = _number(_object(entry).get("pid"))
        if pid is not None and 0 < pid <= PID_LIMIT:
            memory = _number(_object(_object(entry).get("memory_usage")).get("vram_mem"))
            memory = _number(entry.get("mem")) if memory is None else memory
            known = memory is not None and memory <= MOST_PROCESS_MEMORY
            processes[int(pid)] = {
                "pid": int(pid),
                "memory": int(memory) if known and memory is not None else None,
                "kind": "compute",
            }
    return [processes[pid] for pid in sorted(processes)]
