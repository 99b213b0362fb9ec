"""Errors of a device's memory, and what was done about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from mgpu_probes.outside.devices.errors import Json, is_lacking

_COUNTERS = {
    "corrected": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
    "uncorrected": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
    "corrected_ever": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_AGGREGATE_ECC),
    "uncorrected_ever": (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_AGGREGATE_ECC),
}


def errors(handle: Any) -> Json:
    """Not supported where the memory has no error correction, or it is off."""
    return {"ecc": {name: _counter(handle, *of) for name, of in _COUNTERS.items()}}


def repairs(handle: Any) -> Json:
    """Rows remapped; before Ampere: pages retired."""
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


def _counter(handle: Any, kind: int, since: int) -> int | None:
    told = _or_none(lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
    return None if told is None else int(told)


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (pynvml.NVMLError, AttributeError) as error:
        if is_lacking(error):
            return None
        raise
