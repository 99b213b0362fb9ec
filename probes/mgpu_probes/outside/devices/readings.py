"""What changes all the time: use, memory, power, temperature, clocks."""

from __future__ import annotations

from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import GONE, Json, is_lacking

_REASONS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clocks_setting",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power_cap",
    pynvml.nvmlClocksThrottleReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksThrottleReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown: "hw_power_brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display",
}
"""Bits of NVML's clock event reasons (throttle reasons before driver 535) by our names."""
_MOST_FAN = 200
"""Per cent. A fan may turn faster than it is meant to (NVML's documentation)."""


def utilization(handle: Any) -> Json:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization": _share(int(rates.gpu)),
        "memory_busy": int(rates.memory) / 100 if 0 <= int(rates.memory) <= 100 else None,
    }


def memory(handle: Any) -> Json:
    """A device without memory of its own supports no question for it; `lacks_memory` is then all
    that is returned, and whether it is unified memory depends on what else answers."""
    try:
        told = _memory(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return {"lacks_memory": True}
    used, total = int(told.used), int(told.total)
    if not 0 <= used <= total:
        raise ValueError(f"nonsense ({used} of {total} bytes)")
    return {"memory_used": used, "memory_total": total}


def _memory(handle: Any) -> Any:
    """Version 1 counts what the driver reserves as used: version 2 first."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, AttributeError) as error:
        if getattr(error, "value", None) in GONE:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def power(handle: Any) -> Json:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def power_limit(handle: Any) -> Json:
    return {"power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3}


def temperature(handle: Any) -> Json:
    told = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    return {"temperature": float(told)}


def clock(handle: Any) -> Json:
    return {"sm_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))}


def memory_clock(handle: Any) -> Json:
    return {"memory_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))}


def clock_reasons(handle: Any) -> Json:
    """What keeps the clocks down now; drivers before 535 know the older name only."""
    try:
        bits = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (pynvml.NVMLError, AttributeError) as error:
        if not is_lacking(error):
            raise
        bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {"clock_reasons": [name for bit, name in _REASONS.items() if bits & bit]}


def fan(handle: Any) -> Json:
    """Not supported where the chassis cools."""
    percent = int(pynvml.nvmlDeviceGetFanSpeed(handle))
    if not 0 <= percent <= _MOST_FAN:
        raise ValueError(f"nonsense ({percent} %)")
    return {"fan": percent / 100}


def _share(percent: int) -> float:
    if not 0 <= percent <= 100:
        raise ValueError(f"nonsense ({percent} %)")
    return percent / 100
