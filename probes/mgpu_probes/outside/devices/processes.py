"""Who is on a device: pids as the host numbers them, also inside a container."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import GONE, Json, is_lacking

PID_LIMIT = 1 << 22
"""Linux never hands out a larger pid (PID_MAX_LIMIT): one above it is a misread structure."""
MOST_MEMORY = 1 << 48
"""Bytes. More is a misread structure too."""

_Lister = Callable[[Any], list[Any]]


def processes(handle: Any) -> Json:
    """One entry a process: those that compute first, as some also draw."""
    found: dict[int, Json] = {}
    for kind, name in _LISTS:
        try:
            listed = _listed(name, handle)
        except (pynvml.NVMLError, AttributeError) as error:
            if kind != "compute" and is_lacking(error):
                continue
            raise
        for one in listed:
            found.setdefault(one["pid"], {**one, "kind": kind})
    ordered = sorted(found.values(), key=lambda one: int(one["pid"]))
    return {"pids": [one["pid"] for one in ordered], "processes": ordered}


def pids_of(handle: Any) -> list[int]:
    """Those that compute on a MIG instance."""
    return sorted(one["pid"] for one in _listed("nvmlDeviceGetComputeRunningProcesses", handle))


_LISTS = (
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
)


def _listed(name: str, handle: Any) -> list[Json]:
    """Version 3, then 2: older drivers have no newer one, and 535.43 changed the structure under
    the old name, which shows in pids that cannot be."""
    try:
        return _plausible(_lister(name, 3)(handle))
    except (pynvml.NVMLError, AttributeError, ValueError) as error:
        if getattr(error, "value", None) in GONE:
            raise
        return _plausible(_lister(name, 2)(handle))


def _lister(name: str, version: int) -> _Lister:
    lister: _Lister = getattr(pynvml, f"{name}_v{version}")
    return lister


def _plausible(listed: list[Any]) -> list[Json]:
    found: list[Json] = [
        {
            "pid": int(one.pid),
            "memory": None if one.usedGpuMemory is None else int(one.usedGpuMemory),
        }
        for one in listed
    ]
    for one in found:
        if not 0 < one["pid"] <= PID_LIMIT or (one["memory"] or 0) > MOST_MEMORY:
            raise ValueError("the driver's process structure is unknown")
    return found
