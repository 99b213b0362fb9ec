"""Helpers for rules about hardware: the ranks of a device, its name, and its readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TypeVar

from mgpu_doctor.analysis.machines.host_devices import Gpu
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.findings import Culprit
from mgpu_doctor.formatting import format_ranks
from mgpu_doctor.rules.culprits import culprit_of

SURE = 0.9
"""Confidence if the driver reports the same fact about a device twice."""
LOADED = 0.5
"""Utilization, 0..1, from which a device counts as loaded: idle devices lower their clocks and
their link speed."""

T = TypeVar("T")


def culprits(measures: Measures, gpus: Iterable[Gpu]) -> tuple[Culprit, ...]:
    """The ranks on these devices as culprits; for a device without a rank, the device itself."""
    result: list[Culprit] = []
    for gpu in gpus:
        result += [culprit_of(measures, number) for number in gpu.ranks]
        if not gpu.ranks:
            result.append(Culprit(None, host=gpu.host, device=f"GPU {gpu.index}"))
    return tuple(result)


def named(gpu: Gpu) -> str:
    """`GPU 3 of rank 3`, `GPU 3 of node-a, which no rank uses`."""
    if gpu.ranks:
        return f"GPU {gpu.index} of {format_ranks(gpu.ranks)}"
    host = f" of {gpu.host}" if gpu.host else ""
    if not gpu.has_job:
        return f"GPU {gpu.index}{host}"
    return f"GPU {gpu.index}{host} (no rank of the job is known to run there)"


def where(gpu: Gpu) -> str:
    """The device with its address, as evidence shows it."""
    at = f" at {gpu.device.bus_id}" if gpu.device.bus_id else ""
    return f"GPU {gpu.index}{at}"


def loaded(gpu: Gpu) -> list[tuple[float, Device]]:
    """The samples in which the device was loaded."""
    return [series for series in gpu.series if (series[1].utilization or 0.0) >= LOADED]


def list_readings(gpu: Gpu, value: Callable[[Device], T | None]) -> list[tuple[float, T]]:
    """The known (seconds since the epoch, value) pairs of one fact of a GPU."""
    return [(at, fact) for at, device in gpu.series if (fact := value(device)) is not None]


def risen(series: list[tuple[float, int]]) -> tuple[int, float]:
    """The increase of a counter, and the seconds from its first to its last reading. After a reset,
    counting continues from the new value."""
    total = 0
    for (_, before), (_, after) in pairwise(series):
        total += max(0, after - before)
    return total, series[-1][0] - series[0][0] if series else 0.0


def lasting(values: list[tuple[float, T]]) -> T | None:
    """The newest value, if the previous one agrees with it: a single reading may be an error."""
    if len(values) < 2 or bool(values[-1][1]) != bool(values[-2][1]):
        return None
    return values[-1][1]
