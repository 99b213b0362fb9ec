"""How the GPUs of a host reach each other: the slowest way that ranks must take, and better ones.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from mgpu_doctor.analysis.devices.watched import Gpu, Watched

WAYS = ("SELF", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS")
"""The letters of `nvidia-smi topo -m`, the fastest first."""
FAR = ("NODE", "SYS")
"""Through the CPU's own links between its parts, or between CPUs."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Ways between the GPUs of one host by NVML's index; pairs that are not known are left out."""

    ways: dict[frozenset[int], str]
    barred: dict[frozenset[int], str]
    """Pairs that may not reach each other's memory by themselves -> NVML's reason."""

    def way(self, one: int, other: int) -> str | None:
        return self.ways.get(frozenset((one, other)))

    def slowest(self, indices: Iterable[int]) -> str | None:
        """Of all pairs; None where one of them is not known, or there is no pair."""
        found = [self.way(*pair) for pair in combinations(sorted(set(indices)), 2)]
        known = [way for way in found if way is not None]
        return max(known, key=WAYS.index) if known and len(known) == len(found) else None

    def outsiders(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Those without an NVLink to any of the others, where most of these have one."""
        linked = {
            index
            for index in indices
            if any(self.way(index, other) == "NVL" for other in indices if other != index)
        }
        alone = tuple(index for index in indices if index not in linked)
        return alone if 2 * len(linked) > len(indices) else ()

    def better(self, used: Sequence[int], free: Sequence[int]) -> tuple[int, ...] | None:
        """As many devices that are all nearer to each other, of those in use and those that are
        free; as many as can be of those in use. None: there are none."""
        now = self.slowest(used)
        if now is None:
            return None
        for way in WAYS[1 : WAYS.index(now)]:
            near = WAYS[: WAYS.index(way) + 1]
            for seed in (*used, *free):
                order = (*used, *free)
                group = [seed]
                for other in order:
                    if other != seed and all(self.way(other, one) in near for one in group):
                        group.append(other)
                    if len(group) == len(used):
                        return tuple(sorted(group))
        return None


def wiring(watched: Watched) -> Wiring | None:
    """None: not known. Two GPUs whose NVLinks go to switches reach each other through these."""
    told = watched.topology
    if told is None:
        return None
    switched = {gpu.index for gpu in watched.gpus if _on_switch(gpu)}
    ways, barred = {}, {}
    for i, j in combinations([gpu.index for gpu in watched.gpus], 2):
        pair, way = frozenset((i, j)), _cell(told.levels, i, j)
        if i in switched and j in switched:
            ways[pair] = "NVL"
        elif way in WAYS:
            ways[pair] = way
        peer = _cell(told.peer, i, j)
        if peer not in (None, "?", "OK"):
            barred[pair] = str(peer)
    return Wiring(ways, barred)


def _on_switch(gpu: Gpu) -> bool:
    return any(link.up and link.remote == "switch" for link in gpu.device.nvlinks)


def _cell(table: Sequence[Sequence[str]], row: int, column: int) -> str | None:
    return table[row][column] if row < len(table) and column < len(table[row]) else None
