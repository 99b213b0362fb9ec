"""The fields of one GPU's reading, named as in the case's `Device`; all are unknown at first."""

from __future__ import annotations

from typing import Any

IDENTITY = ("name", "uuid", "bus_id")
"""Fields that are still reported of a lost device."""
PARTS = {
    "pcie": (
        "generation",
        "width",
        "generation_most",
        "width_most",
        "sent",
        "received",
        "replays",
    ),
    "ecc": (
        "corrected",
        "uncorrected",
        "corrected_ever",
        "uncorrected_ever",
        "remapped",
        "pending",
        "failed",
    ),
}
"""Fields that are objects, merged from several queries."""
_UNKNOWN = (
    "name",
    "uuid",
    "utilization",
    "memory_used",
    "memory_total",
    "power_watts",
    "power_limit_watts",
    "temperature",
    "sm_clock_mhz",
    "max_sm_clock_mhz",
    "clock_reasons",
    "trouble",
    "memory_busy",
    "fan",
    "memory_clock_mhz",
    "bus_id",
    "numa_node",
    "cores",
    "pcie",
    "nvlink_sent",
    "nvlink_received",
    "ecc",
    "mig",
)
_NONE_KNOWN = ("pids", "processes", "nvlinks", "instances")


def make_unknown_device(index: int, vendor: str = "nvidia") -> dict[str, Any]:
    """A reading of which only index and vendor are known."""
    return {
        "index": index,
        "vendor": vendor,
        "unified_memory": False,
        **dict.fromkeys(_UNKNOWN),
        **{name: [] for name in _NONE_KNOWN},
    }


def join_part(name: str, *known: dict[str, Any]) -> dict[str, Any] | None:
    """One of `PARTS`, merged from the known values; None if all are unknown."""
    values: dict[str, Any] = dict.fromkeys(PARTS[name])
    for device in known:
        values.update(device)
    return values if any(value is not None for value in values.values()) else None
