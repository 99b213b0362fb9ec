"""The parts of a GPU in MIG mode."""

from __future__ import annotations

from typing import Any

import pynvml

from mgpu_probes.outside.devices import identity, processes, readings
from mgpu_probes.outside.devices.errors import GONE, Json, sentence

_MOST_INSTANCES = 64


def mode(handle: Any) -> Json:
    """Whether it is in MIG mode, and then its parts."""
    on = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return {"mig": on, "instances": instances(handle) if on else []}


def instances(handle: Any) -> list[Json]:
    """Places without a part answer that nothing was found."""
    found = []
    count = int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    for place in range(min(count, _MOST_INSTANCES)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError as error:
            if error.value in GONE:
                raise
            continue
        found.append(_instance(part))
    return found


def _instance(part: Any) -> Json:
    told: Json = {}
    for ask in _PARTS:
        try:
            told.update(ask(part))
        except (pynvml.NVMLError, AttributeError, ValueError) as error:
            if getattr(error, "value", None) in GONE:
                raise
            told.setdefault("trouble", sentence(error))
    return {
        "uuid": told.get("uuid"),
        "gpu_instance": told.get("gpu_instance"),
        "compute_instance": told.get("compute_instance"),
        "memory_used": told.get("memory_used"),
        "memory_total": told.get("memory_total"),
        "pids": told.get("pids", []),
    }


_PARTS = (
    identity.uuid,
    lambda part: {"gpu_instance": int(pynvml.nvmlDeviceGetGpuInstanceId(part))},
    lambda part: {"compute_instance": int(pynvml.nvmlDeviceGetComputeInstanceId(part))},
    readings.memory,
    lambda part: {"pids": processes.pids_of(part)},
)
