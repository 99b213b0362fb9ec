"""Reads the GPUs of this machine through NVML. Facts only; every field may be unknown."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pynvml

Json = dict[str, Any]

RETRY_SECONDS = 60.0
"""Between attempts to find a driver: where one is installed but not loaded, each attempt may start
`nvidia-modprobe`."""
PID_LIMIT = 1 << 22
"""Linux never hands out a larger pid (PID_MAX_LIMIT): one above it is a misread structure."""

_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_NO_DRIVER = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)


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


class _LostError(Exception):
    """The device answers nothing any more."""


class Devices:
    """All GPUs that NVML shows. Keeps the driver open; not for use by two threads at once."""

    def __init__(self) -> None:
        self._open = False
        self._retry_at = 0.0
        self._trouble: str | None = None
        self._gpus: dict[int, _Gpu] = {}

    def sample(self) -> Json:
        """One reading, ready for JSON: `at` (seconds since the epoch), `trouble` (why there are no
        devices at all, or null) and `devices`, a list of objects with `index`, `name`, `uuid`,
        `utilization` (0..1), `memory_used` and `memory_total` (bytes), `power_watts`,
        `power_limit_watts`, `temperature` (degrees Celsius), `sm_clock_mhz`, `max_sm_clock_mhz`,
        `clock_reasons` (what keeps the clock below its maximum, a list of names), `pids` and
        `trouble`. Never raises for what a driver answers."""
        count = self._count()
        self._gpus = {index: self._gpus.get(index) or _Gpu(index) for index in range(count)}
        return {
            "at": time.time(),
            "trouble": self._trouble,
            "devices": [gpu.sample() for gpu in self._gpus.values()],
        }

    def close(self) -> None:
        """Let go of the driver."""
        if self._open:
            self._open = False
            self._gpus = {}
            pynvml.nvmlShutdown()

    def _count(self) -> int:
        if not self._open and time.monotonic() < self._retry_at:
            return 0
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self._gpus = {}
            self._open = False
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._trouble = _no_devices(error)
            return 0
        self._trouble = None if count else "the NVIDIA driver shows no GPU"
        return count


class _Gpu:
    """One device: its handle, what never changes about it, and what is wrong with it."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._handle: Any = None
        self._identity: Json = {"name": None, "uuid": None}
        self._max_clock: float | None = None
        self._troubles: dict[str, list[str]] = {}

    def sample(self) -> Json:
        self._troubles = {}
        reading: Json = {
            "index": self._index,
            **self._identity,
            **dict.fromkeys(_FIELDS),
            "pids": [],
        }
        try:
            self._find()
            reading.update(self._identity)
            reading.update(self._read())
        except _LostError as lost:
            self._handle = None
            reading.update(dict.fromkeys(_FIELDS), pids=[], trouble=str(lost))
        else:
            reading["trouble"] = self._trouble()
        return reading

    def _find(self) -> None:
        if self._handle is not None:
            return
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        except pynvml.NVMLError as error:
            told = _sentence(error)
            raise _LostError(told if error.value in _GONE else f"out of reach: {told}") from error
        self._handle = handle
        self._identity = {
            "name": self._ask("name", lambda: str(pynvml.nvmlDeviceGetName(handle))),
            "uuid": self._ask("uuid", lambda: str(pynvml.nvmlDeviceGetUUID(handle))),
        }

    def _read(self) -> Json:
        handle = self._handle
        memory = self._ask("memory", lambda: _memory(handle))
        if self._max_clock is None:  # it never changes, so it is asked until it is known
            self._max_clock = self._ask("maximum clock", lambda: _max_clock(handle))
        return {
            "utilization": self._ask("utilization", lambda: _utilization(handle)),
            "memory_used": memory and memory[0],
            "memory_total": memory and memory[1],
            "power_watts": self._ask("power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
            "power_limit_watts": self._ask(
                "power limit", lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
            ),
            "temperature": self._ask("temperature", lambda: _temperature(handle)),
            "sm_clock_mhz": self._ask(
                "clock",
                lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            ),
            "max_sm_clock_mhz": self._max_clock,
            "clock_reasons": self._ask("clock event reasons", lambda: _clock_reasons(handle)),
            "pids": self._ask("processes", lambda: _pids(handle)) or [],
        }

    def _ask(self, what: str, call: Callable[[], Any]) -> Any:
        """The answer, or None with the reason noted. ValueError: the answer makes no sense."""
        try:
            return call()
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                raise _LostError(_sentence(error)) from error
            reason = _sentence(error)
        except ValueError as error:
            reason = str(error)
        self._troubles.setdefault(reason, []).append(what)
        return None

    def _trouble(self) -> str | None:
        if not self._troubles:
            return None
        told = "; ".join(f"{why}: {', '.join(what)}" for why, what in self._troubles.items())
        return f"MIG mode; {told}" if self._in_mig_mode() else told

    def _in_mig_mode(self) -> bool:
        try:
            return bool(pynvml.nvmlDeviceGetMigMode(self._handle)[0])
        except pynvml.NVMLError:
            return False


_FIELDS = (
    "utilization",
    "memory_used",
    "memory_total",
    "power_watts",
    "power_limit_watts",
    "temperature",
    "sm_clock_mhz",
    "max_sm_clock_mhz",
    "clock_reasons",
)


def _utilization(handle: Any) -> float:
    percent = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    if not 0 <= percent <= 100:
        raise ValueError(f"nonsense ({percent} %)")
    return percent / 100


def _memory(handle: Any) -> tuple[int, int]:
    """Used and total bytes. Version 1 counts what the driver reserves as used: version 2 first."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = int(memory.used), int(memory.total)
    if not 0 <= used <= total:
        raise ValueError(f"nonsense ({used} of {total} bytes)")
    return used, total


def _temperature(handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


def _max_clock(handle: Any) -> float:
    return float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))


def _clock_reasons(handle: Any) -> list[str]:
    """What keeps the clocks down now; drivers before 535 know the older name only."""
    try:
        bits = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return [name for bit, name in _REASONS.items() if bits & bit]


def _pids(handle: Any) -> list[int]:
    """Pids with a context on the device, as the host numbers them (also inside a container)."""
    pids: set[int] = set()
    for newer, older in _PROCESS_LISTS:
        try:
            pids.update(_plausible(newer(handle)))
        except (pynvml.NVMLError, ValueError) as error:
            if getattr(error, "value", None) in _GONE:
                raise
            pids.update(_plausible(older(handle)))
    return sorted(pids)


_PROCESS_LISTS = (
    (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ),
    (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
    ),
)


def _plausible(processes: list[Any]) -> list[int]:
    """Drivers have changed the structure under one name (535.43): then the pids are garbage."""
    pids = [int(process.pid) for process in processes]
    if not all(0 < pid <= PID_LIMIT for pid in pids):
        raise ValueError("the driver's process structure is unknown")
    return pids


def _sentence(error: Any) -> str:
    return str(error).strip().rstrip(".").replace("Not Supported", "not supported")


def _no_devices(error: Any) -> str:
    if error.value in _NO_DRIVER:
        return "no NVIDIA driver on this machine"
    return f"NVML does not start: {_sentence(error)}"
