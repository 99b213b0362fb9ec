"""Steps as named columns, for formats that keep columns. What was not measured is masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.case.model import Records

Column = np.ma.MaskedArray[Any, np.dtype[Any]]

UNKNOWN_IF_ZERO = ("samples", "tokens", "device_bytes")
COUNTED = ("collectives", "micro_batches")
SECONDS = {"gc_seconds": "gc_s", "cpu_seconds": "cpu_s"}


def columns(steps: Records, clock_offset: float) -> dict[str, Column]:
    """Name, as in the CSV file -> one value a step; seconds, bytes, counts; `ended` is seconds
    since the epoch."""
    found: dict[str, Column] = {
        "step": _all(steps["step"]),
        "ended": _all(steps["end_ns"] * 1e-9 + clock_offset),
        "step_seconds": _all(steps["wall_ns"] * 1e-9),
    }
    for place, phase in enumerate(PHASES):
        found[f"{phase}_seconds"] = np.ma.masked_invalid(steps["phases"][:, place])
    found["warm_up"] = _all(steps["flags"] & WARM_UP != 0)
    found["loss"] = np.ma.masked_invalid(steps["loss"])
    for name, field in SECONDS.items():
        found[name] = np.ma.masked_invalid(steps[field])
    for name in UNKNOWN_IF_ZERO:
        found[name] = np.ma.masked_equal(steps[name].astype(np.int64), 0)
    for name in COUNTED:
        found[name] = _all(steps[name].astype(np.int64))
    return found


def _all(values: npt.NDArray[Any]) -> Column:
    return np.ma.masked_array(np.ascontiguousarray(values), mask=np.ma.nomask)
