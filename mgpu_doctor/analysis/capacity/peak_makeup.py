"""Splits a rank's peak memory into weights, gradients, optimizer states, buckets and the rest.

The sizes of the first three are known from the optimizers, buckets from DistributedDataParallel.
The rest of the peak is activations, and on a host everything else in the process. All parts are in
memory at the peak in a backward pass; if they add up to more than the peak, nothing is reported.
The memory rules and the rank's page of `top` use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.rank_device import device_kind

KEPT = ("weights", "gradients", "optimizer", "buckets")
REST, CACHE = "rest", "cache"
"""`rest`: activations, and on a host everything else in the process. `cache`: memory that torch's
allocator has reserved beyond the peak."""


@dataclass(frozen=True, slots=True)
class PeakMakeup:
    """The parts of a peak, in bytes. `where`: `device` or `host`."""

    where: str
    peak: int
    parts: Mapping[str, int]
    """The nonempty parts; all but `cache` add up to the peak."""


def find_makeup(rank: Rank) -> PeakMakeup | str:
    """The parts of the peak, or a sentence that says why they are unknown."""
    parts = rank.metadata.memory_parts
    if parts is None:
        return "no optimizer has reported its parameters"
    where = "host" if device_kind(rank) == "cpu" else "device"
    if (parts.on == "cpu") != (where == "host"):
        return "its weights are not kept where it computes"
    peak = _peak(rank, where)
    if peak is None:
        return "its highest memory is not known"
    sizes = {name: getattr(parts, name) for name in KEPT[:3]}
    ddp = rank.metadata.ddp
    if ddp is not None and not ddp.bucket_view:
        sizes["buckets"] = sum(ddp.buckets)
    sizes[REST] = peak - sum(sizes.values())
    if sizes[REST] < 0:
        return "weights, gradients and optimizer together exceed its peak, so not all were in it"
    device = rank.metadata.device_memory
    if where == "device" and device.reserved_peak is not None:
        sizes[CACHE] = max(0, device.reserved_peak - peak)
    return PeakMakeup(where, peak, {name: size for name, size in sizes.items() if size})


def _peak(rank: Rank, where: str) -> int | None:
    if where == "device" and rank.metadata.device_memory.allocated_peak:
        return rank.metadata.device_memory.allocated_peak
    history = rank.metadata.memory_peaks.history(where)
    return history[-1].peak if history else None
