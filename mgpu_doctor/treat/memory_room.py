"""Whether a size would fit into memory, before it is tried: that of the machine, or of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mgpu_probes.outside.host_usage import HostUsage

from mgpu_doctor.case.device_samples import Device
from mgpu_doctor.case.model import Case

USABLE = 0.8
"""Share of the free memory that a trial may be predicted to need, where other jobs need the rest. A
choice."""
FLOOR = 0.05
"""A trial is ended if less than this share of the machine's memory is left. A choice."""


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """GPU memory that each rank of a job can have."""

    bytes: int
    is_shared: bool
    """Whether processes of other jobs use the GPU, too."""


def find_gpu_room(case: Case) -> GpuRoom | None:
    """The room on the fullest GPU that the job's ranks use, by the latest sample with them; None:
    no such sample is known."""
    pids = {rank.pid for rank in case.ranks if rank.pid is not None}
    for sample in reversed(case.device_samples):
        rooms = [room for device in sample.devices if (room := _room_on(device, pids)) is not None]
        if rooms:
            return min(rooms, key=lambda room: room.bytes)
    return None


def _room_on(device: Device, pids: set[int]) -> GpuRoom | None:
    own = [process for process in device.processes if process.pid in pids]
    if not own or device.memory_total is None or device.memory_used is None:
        return None
    others = max(0, device.memory_used - sum(process.memory or 0 for process in own))
    room = max(0, device.memory_total - others) // len(own)
    return GpuRoom(room, is_shared=len(own) < len(device.processes))


def explain_gpu_shortage(rank_bytes: int, room: GpuRoom | None) -> str | None:
    """Why a size that needs these bytes per rank should not be tried on its GPU, a clause; None: it
    may be. On a GPU of the job's own, a batch that does not fit harms nobody."""
    if room is None or rank_bytes <= room.bytes * (USABLE if room.is_shared else 1.0):
        return None
    whose = "other jobs leave on its GPU" if room.is_shared else "its GPU has"
    return f"it is predicted to need more memory than {whose}"


def explain_host_shortage(all_bytes: int) -> str | None:
    """Why a size with this memory of all ranks should not be tried on this machine, a clause; None:
    it may be."""
    free = read_memory()[0]
    if free is None or all_bytes <= free * USABLE:
        return None
    return "it is predicted to need more memory than the machine has left"


def is_short() -> bool:
    """Whether the machine has so little memory left that other jobs could suffer."""
    free, total = read_memory()
    return free is not None and total is not None and free < total * FLOOR


def read_memory() -> tuple[int | None, int | None]:
    """Bytes of memory that the machine, or this container, has left, and all; None: unknown."""
    sample = _host().sample()
    total, used = sample["memory_total"], sample["memory_used"]
    cache = sample.get("memory_cache") or 0
    return (None if total is None or used is None else total - used + cache), total


@lru_cache(maxsize=1)
def _host() -> HostUsage:
    return HostUsage()
