"""How much memory each rank took at most, from whatever source tells most about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.case.model import Case, Rank


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each rank at its largest; ranks of which nothing is known are left out."""

    kind: str
    """`allocated on the device`, `used on the device`, `resident on the host`"""
    ranks: Mapping[int, int]

    @property
    def most(self) -> int:
        return max(self.ranks.values())


def memory_of(case: Case) -> Memory | str:
    """By the step records, else by device samples, else by host samples; or why it is unknown."""
    sources = (
        ("allocated on the device", _allocated),
        ("used on the device", _on_devices),
        ("resident on the host", _resident),
    )
    for kind, source in sources:
        known = source(case)
        if known:
            return Memory(kind, known)
    return "no step record tells of memory, and the recording has no sample of the ranks' processes"


def _allocated(case: Case) -> dict[int, int]:
    return {
        number: int(rank.steps["device_bytes"].max())
        for number, rank in _numbered(case).items()
        if len(rank.steps) and rank.steps["device_bytes"].any()
    }


def _on_devices(case: Case) -> dict[int, int]:
    ranks = {rank.pid: number for number, rank in _numbered(case).items() if rank.pid is not None}
    found: dict[int, int] = {}
    for sample in case.device_samples:
        for device in sample.devices:
            for process in device.processes:
                number = ranks.get(process.pid)
                if number is not None and process.memory:
                    found[number] = max(found.get(number, 0), process.memory)
    return found


def _resident(case: Case) -> dict[int, int]:
    """Of the rank's own process; what it shares with others is counted for each."""
    places = {
        (rank.host, rank.pid): number
        for number, rank in _numbered(case).items()
        if rank.pid is not None
    }
    found: dict[int, int] = {}
    for sample in case.host_samples:
        for pid, (_, resident) in sample.processes.items():
            number = places.get((sample.host or "", pid))
            if number is not None and resident:
                found[number] = max(found.get(number, 0), resident)
    return found


def _numbered(case: Case) -> dict[int, Rank]:
    return {rank.rank: rank for rank in case.ranks if rank.rank is not None}
