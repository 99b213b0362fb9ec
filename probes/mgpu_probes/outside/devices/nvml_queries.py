"""The NVML queries of one GPU. Each function returns fields of the GPU's reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pynvml

from mgpu_probes.outside.devices.driver_polling import (
    LOST_ERRORS,
    Json,
    describe_error,
    is_unsupported,
)

_CORE_WORDS = 32
"""Words of 64 bits in a CPU affinity mask."""
_NODE_WORDS = 4
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
_ECC_COUNTERS = {
    "corrected": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    "uncorrected": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    "corrected_ever": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    "uncorrected_ever": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
}
PID_LIMIT = 1 << 22
"""Linux never hands out a larger pid (PID_MAX_LIMIT): one above it is a misread structure."""
MOST_PROCESS_MEMORY = 1 << 48
"""Bytes. More is a misread structure too."""

_Lister = Callable[[Any], list[Any]]
_MOST_INSTANCES = 64


def query_name(handle: Any) -> Json:
    return {"name": _decode(pynvml.nvmlDeviceGetName(handle))}


def query_uuid(handle: Any) -> Json:
    return {"uuid": _decode(pynvml.nvmlDeviceGetUUID(handle))}


def query_bus_id(handle: Any) -> Json:
    """The PCI address as the kernel writes it (NVML writes eight digits of domain and capitals)."""
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return {"bus_id": f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"}


def query_max_clock(handle: Any) -> Json:
    clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return {"max_sm_clock_mhz": float(clock)}


def query_numa_node(handle: Any) -> Json:
    """The node of the nearest host memory. (nvmlDeviceGetNumaNodeId is the node of a coherent
    device's own memory.)"""
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    nodes = _bits(words)
    return {"numa_node": nodes[0] if len(nodes) == 1 else None}


def query_cpu_affinity(handle: Any) -> Json:
    return {
        "cores": format_ranges(_bits(pynvml.nvmlDeviceGetCpuAffinity(handle, _CORE_WORDS))) or None
    }


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes a list: `0-3,8`. `numbers`: ascending."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _bits(words: Iterable[int]) -> list[int]:
    return [
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    ]


def _decode(raw: Any) -> str:
    """The text; older versions of the binding return bytes."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def query_utilization(handle: Any) -> Json:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization": _share(int(rates.gpu)),
        "memory_busy": int(rates.memory) / 100 if 0 <= int(rates.memory) <= 100 else None,
    }


def query_memory(handle: Any) -> Json:
    """Bytes used and total. A device without memory of its own returns only `lacks_memory`; whether
    it has unified memory depends on the other queries."""
    try:
        memory = _memory_info(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return {"lacks_memory": True}
    used, total = int(memory.used), int(memory.total)
    if not 0 <= used <= total:
        raise ValueError(f"nonsense ({used} of {total} bytes)")
    return {"memory_used": used, "memory_total": total}


def _memory_info(handle: Any) -> Any:
    """The structure of version 2, else 1, which counts the driver's reserved memory as used."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (pynvml.NVMLError, AttributeError) as error:
        if getattr(error, "value", None) in LOST_ERRORS:
            raise
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def query_power(handle: Any) -> Json:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def query_power_limit(handle: Any) -> Json:
    return {"power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3}


def query_temperature(handle: Any) -> Json:
    temperature = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    return {"temperature": float(temperature)}


def query_clock(handle: Any) -> Json:
    return {"sm_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))}


def query_memory_clock(handle: Any) -> Json:
    return {"memory_clock_mhz": float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))}


def query_clock_reasons(handle: Any) -> Json:
    """What keeps the clocks down now; drivers before 535 know the older name only."""
    try:
        bits = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (pynvml.NVMLError, AttributeError) as error:
        if not is_unsupported(error):
            raise
        bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return {"clock_reasons": [name for bit, name in _REASONS.items() if bits & bit]}


def query_fan(handle: Any) -> Json:
    """Not supported where the chassis cools."""
    percent = int(pynvml.nvmlDeviceGetFanSpeed(handle))
    if not 0 <= percent <= _MOST_FAN:
        raise ValueError(f"nonsense ({percent} %)")
    return {"fan": percent / 100}


def _share(percent: int) -> float:
    if not 0 <= percent <= 100:
        raise ValueError(f"nonsense ({percent} %)")
    return percent / 100


def query_ecc_errors(handle: Any) -> Json:
    """ECC error counters; None for each if ECC is missing or off."""
    return {"ecc": {name: _ecc_counter(handle, *of) for name, of in _ECC_COUNTERS.items()}}


def query_repaired_memory(handle: Any) -> Json:
    """Remapped rows; before Ampere, retired pages."""
    remapped = _or_none(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if remapped is not None:
        _, uncorrectable, pending, failed = remapped
        return {
            "ecc": {
                "remapped": int(uncorrectable),
                "pending": bool(pending),
                "failed": bool(failed),
            }
        }
    cause = pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR
    retired = _or_none(lambda: pynvml.nvmlDeviceGetRetiredPages(handle, cause))
    pending = _or_none(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
    return {
        "ecc": {
            "remapped": None if retired is None else len(retired),
            "pending": None if pending is None else bool(pending),
        }
    }


def _ecc_counter(handle: Any, kind: int, since: int) -> int | None:
    count = _or_none(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
    return None if count is None else int(count)


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (pynvml.NVMLError, AttributeError) as error:
        if is_unsupported(error):
            return None
        raise


def query_processes(handle: Any) -> Json:
    """One entry per process; a process that computes and draws counts as computing."""
    by_pid: dict[int, Json] = {}
    for kind, name in _PROCESS_LISTS:
        try:
            listed = _list_processes(name, handle)
        except (pynvml.NVMLError, AttributeError) as error:
            if kind != "compute" and is_unsupported(error):
                continue
            raise
        for json in listed:
            by_pid.setdefault(json["pid"], {**json, "kind": kind})
    ordered = sorted(by_pid.values(), key=lambda json: int(json["pid"]))
    return {"pids": [process["pid"] for process in ordered], "processes": ordered}


def list_compute_pids(handle: Any) -> list[int]:
    """The pids that compute on a MIG instance."""
    return sorted(
        process["pid"]
        for process in _list_processes("nvmlDeviceGetComputeRunningProcesses", handle)
    )


_PROCESS_LISTS = (
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


def _list_processes(name: str, handle: Any) -> list[Json]:
    """Processes by version 3 of the call, else 2: older drivers lack version 3, and 535.43 changed
    the structure under the old name, which shows as impossible pids."""
    try:
        return _plausible(_lister(name, 3)(handle))
    except (pynvml.NVMLError, AttributeError, ValueError) as error:
        if getattr(error, "value", None) in LOST_ERRORS:
            raise
        return _plausible(_lister(name, 2)(handle))


def _lister(name: str, version: int) -> _Lister:
    lister: _Lister = getattr(pynvml, f"{name}_v{version}")
    return lister


def _plausible(listed: list[Any]) -> list[Json]:
    plausible: list[Json] = [
        {
            "pid": int(process.pid),
            "memory": None if process.usedGpuMemory is None else int(process.usedGpuMemory),
        }
        for process in listed
    ]
    for json in plausible:
        if not 0 < json["pid"] <= PID_LIMIT or (json["memory"] or 0) > MOST_PROCESS_MEMORY:
            raise ValueError("the driver's process structure is unknown")
    return plausible


def query_mig(handle: Any) -> Json:
    """Whether the GPU is in MIG mode, and its instances."""
    on = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return {"mig": on, "instances": list_mig_instances(handle) if on else []}


def list_mig_instances(handle: Any) -> list[Json]:
    """The MIG instances; indices without an instance are skipped."""
    mig_instances = []
    count = int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    for place in range(min(count, _MOST_INSTANCES)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError as error:
            if error.value in LOST_ERRORS:
                raise
            continue
        mig_instances.append(_instance(part))
    return mig_instances


def _instance(part: Any) -> Json:
    instance: Json = {}
    for ask in _INSTANCE_QUERIES:
        try:
            instance.update(ask(part))
        except (pynvml.NVMLError, AttributeError, ValueError) as error:
            if getattr(error, "value", None) in LOST_ERRORS:
                raise
            instance.setdefault("trouble", describe_error(error))
    return {
        "uuid": instance.get("uuid"),
        "gpu_instance": instance.get("gpu_instance"),
        "compute_instance": instance.get("compute_instance"),
        "memory_used": instance.get("memory_used"),
        "memory_total": instance.get("memory_total"),
        "pids": instance.get("pids", []),
    }


_INSTANCE_QUERIES = (
    query_uuid,
    lambda part: {"gpu_instance": int(pynvml.nvmlDeviceGetGpuInstanceId(part))},
    lambda part: {"compute_instance": int(pynvml.nvmlDeviceGetComputeInstanceId(part))},
    query_memory,
    lambda part: {"pids": list_compute_pids(part)},
)
