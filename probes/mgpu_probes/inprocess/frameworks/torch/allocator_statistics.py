"""Reads torch's statistics of its caching allocator, for the GPU that the rank computes on.

They are read with memory samples and for the process metadata. Reading never initializes CUDA and
never waits for a device; it takes the allocator's lock. It uses torch's private nested form,
because `torch.cuda.memory_stats` flattens and sorts it at a higher cost than all the rest.
"""

from __future__ import annotations

from typing import Any

import torch

from ...probe_context import ProbeContext

probe: ProbeContext

_FIELDS = {
    "allocated": ("allocated_bytes", "current"),
    "allocated_peak": ("allocated_bytes", "peak"),
    "reserved": ("reserved_bytes", "current"),
    "reserved_peak": ("reserved_bytes", "peak"),
}


def allocated() -> tuple[int, int]:
    """Allocated bytes, now and peak; 0: no GPU is in use, or this torch does not report them."""
    statistics = _statistics()
    current, peak = (
        _number(statistics, "allocated_bytes", "all", kind) for kind in ("current", "peak")
    )
    return current or 0, peak or 0


def describe() -> dict[str, Any]:
    """The statistics, for the process metadata; counters count from the start of the process."""
    statistics = _statistics()
    if not statistics:
        return {}
    facts = {
        name: _number(statistics, kind, "all", field) for name, (kind, field) in _FIELDS.items()
    }
    facts |= {
        "retries": _number(statistics, "num_alloc_retries"),
        "ooms": _number(statistics, "num_ooms"),
    }
    return {"device_memory": facts}


def _statistics() -> Any:
    if probe.device_clock == "cpu" or not torch.cuda.is_initialized():
        return {}
    try:
        return torch._C._cuda_memoryStats(index())
    except (AttributeError, RuntimeError, TypeError):
        return {}


def index() -> int:
    """The index of the GPU that holds the parameters; without an optimizer, of the current one."""
    devices = [
        optimizer.facts.get("device") or "" for optimizer in probe.objects.optimizers.values()
    ]
    named = next((name for name in devices if name.startswith("cuda:")), None)
    return int(named.partition(":")[2]) if named else torch.cuda.current_device()


def _number(statistics: Any, *path: str) -> int | None:
    for key in path:
        statistics = statistics.get(key) if isinstance(statistics, dict) else None
    return statistics if isinstance(statistics, int) else None
