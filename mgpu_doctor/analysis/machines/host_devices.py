"""The GPUs of a case's hosts, used by the job or not: samples, users and connections. Pure.

A lost device may no longer report its UUID; by its index it is still the same device of its host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from mgpu_doctor.analysis.machines.rank_devices import Key, Series, key_of, placements, recent
from mgpu_doctor.case.device_samples import Device, DeviceSample, Topology, XidEvent
from mgpu_doctor.case.model import Case, Outcome

NEWEST = 120
"""Samples of a host that count while the job runs: two minutes at one a second. What is over is
no longer reported, and a live view polls every second."""

_Place = tuple[str | None, int]
"""Host and index of a device."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. `series` is never empty."""

    index: int
    """NVML's."""
    series: Series
    last: float
    """When its host was last sampled: a device that is not listed any more has an older series."""
    ranks: tuple[int, ...] = ()
    """Ranks on the device, if certain; empty: none, or unknown."""
    host: str | None = None
    has_job: bool = True
    """Whether a job was examined, which may use it."""
    xids: tuple[XidEvent, ...] = ()

    @property
    def device(self) -> Device:
        """The device in its newest sample."""
        return self.series[-1][1]

    @property
    def name(self) -> str | None:
        return next((device.name for _, device in reversed(self.series) if device.name), None)


@dataclass(frozen=True)
class Watched:
    gpus: tuple[Gpu, ...] = ()
    """By index."""
    topology: Topology | None = None
    """Topology of the only host; None: unknown, or several hosts."""

    def alike(self, gpu: Gpu) -> tuple[Gpu, ...]:
        """The others of the same model on the same host."""
        group = self._by_model[gpu.host, gpu.name] if gpu.name else ()
        return tuple(device for device in group if device is not gpu)

    def of_rank(self, number: int) -> tuple[Gpu, ...]:
        """The devices on which a rank runs."""
        return tuple(self._by_rank.get(number, ()))

    @cached_property
    def _by_model(self) -> Mapping[tuple[str | None, str | None], Sequence[Gpu]]:
        groups = defaultdict(list)
        for gpu in self.gpus:
            groups[gpu.host, gpu.name].append(gpu)
        return groups

    @cached_property
    def _by_rank(self) -> Mapping[int, Sequence[Gpu]]:
        groups = defaultdict(list)
        for gpu in self.gpus:
            for number in gpu.ranks:
                groups[number].append(gpu)
        return groups


def watch(case: Case) -> Watched:
    """The facts of every GPU; empty if none was sampled."""
    if not any(sample.devices for sample in case.device_samples):
        return Watched()
    hosts = {rank.host for rank in case.ranks} or set(case.job.hosts)
    samples = recent(case)
    sampled = {sample.host: sample.at for sample in samples}
    many = max(len(hosts), len(sampled))
    alone = many < 2
    newest = samples[-NEWEST * many :]
    names = _names(sample for sample in samples if alone or sample.host is not None)
    series = _by_key(newest if case.job.outcome is Outcome.RUNNING else samples, names, alone)
    xids = _xids(samples, names)
    ranks: dict[Key, list[int]] = defaultdict(list)
    for number, placement in placements(case).items():
        ranks[placement.device].append(number)
    homes = {key_of(device): sample.host for sample in samples for device in sample.devices}
    host_of = {rank.rank: rank.host for rank in case.ranks}
    only = next(iter(hosts), None) if alone else None
    gpus = [
        Gpu(
            index=seen[-1][1].index,
            series=tuple(seen),
            last=sampled[homes.get(key, samples[-1].host)],
            ranks=tuple(sorted(ranks[key])),
            host=host_of[ranks[key][0]] if ranks[key] else only if alone else homes.get(key),
            has_job=bool(case.ranks),
            xids=tuple(xids.get(key, ())),
        )
        for key, seen in series.items()
    ]
    topologies = (sample.topology for sample in reversed(case.device_samples) if sample.topology)
    return Watched(
        tuple(sorted(gpus, key=lambda gpu: (gpu.host or "", gpu.index))),
        next(topologies, None) if alone else None,
    )


def on_bus(case: Case, address: str) -> tuple[int, ...]:
    """Ranks on the GPU with a PCI address as the kernel writes it: `0000:3b:00`, or with `.0`.
    Empty where it is not known, or the hosts are several: addresses are alike on all of them."""
    wanted = bus(address)
    if wanted is None or len({rank.host for rank in case.ranks}) != 1:
        return ()
    known = {
        key_of(device)
        for sample in recent(case)
        for device in sample.devices
        if device.bus_id is not None and bus(device.bus_id) == wanted
    }
    return tuple(n for n, placement in placements(case).items() if placement.device in known)


def bus(address: str) -> tuple[int, ...] | None:
    """Domain, bus and slot of a PCI address, whatever its width: `00000000:3B:00.0`."""
    parts = address.partition(".")[0].split(":")
    try:
        numbers = tuple(int(part, 16) for part in parts)
    except ValueError:
        return None
    return numbers if len(numbers) == 3 else (0, *numbers) if len(numbers) == 2 else None


def _names(samples: Iterable[DeviceSample]) -> Mapping[_Place, Key]:
    """Host and index -> the UUID that it had, where it had but one."""
    keys: dict[_Place, set[Key]] = defaultdict(set)
    for sample in samples:
        for device in sample.devices:
            if device.uuid is not None:
                keys[sample.host, device.index].add(device.uuid)
    return {place: min(uuids) for place, uuids in keys.items() if len(uuids) == 1}


def _by_key(
    samples: Iterable[DeviceSample], names: Mapping[_Place, Key], alone: bool
) -> dict[Key, list[tuple[float, Device]]]:
    by_key: dict[Key, list[tuple[float, Device]]] = defaultdict(list)
    for sample in samples:
        for device in sample.devices:
            key = device.uuid or names.get((sample.host, device.index))
            if key is not None or alone:
                by_key[key or key_of(device)].append((sample.at, device))
    return by_key


def _xids(
    samples: Iterable[DeviceSample], names: Mapping[_Place, Key]
) -> dict[Key, list[XidEvent]]:
    """XIDs that the driver reported per device; those without a device are left out."""
    xids: dict[Key, list[XidEvent]] = defaultdict(list)
    for sample in samples:
        here = {device.index: key_of(device) for device in sample.devices}
        for event in sample.events:
            if event.index is not None:
                key = here.get(event.index, "")
                if not key or key.startswith("#"):
                    key = names.get((sample.host, event.index), key)
                xids[key].append(event)
    return xids


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

    def way(self, first: int, other: int) -> str | None:
        return self.ways.get(frozenset((first, other)))

    def slowest(self, indices: Iterable[int]) -> str | None:
        """The slowest path of all pairs; None if a path is unknown, or there is no pair."""
        ways = [self.way(*pair) for pair in combinations(sorted(set(indices)), 2)]
        known = [way for way in ways if way is not None]
        return max(known, key=WAYS.index) if known and len(known) == len(ways) else None

    def outsiders(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Devices without an NVLink to any other, if most others have one."""
        linked = {
            index
            for index in indices
            if any(self.way(index, other) == "NVL" for other in indices if other != index)
        }
        alone = tuple(index for index in indices if index not in linked)
        return alone if 2 * len(linked) > len(indices) else ()

    def better(self, used: Sequence[int], free: Sequence[int]) -> tuple[int, ...] | None:
        """As many devices as in `used` that are closer to each other, chosen from those in use and
        the free ones; it keeps as many in use as possible. None: there are none."""
        now = self.slowest(used)
        if now is None:
            return None
        for way in WAYS[1 : WAYS.index(now)]:
            near = WAYS[: WAYS.index(way) + 1]
            for seed in (*used, *free):
                order = (*used, *free)
                group = [seed]
                for other in order:
                    if other != seed and all(self.way(other, number) in near for number in group):
                        group.append(other)
                    if len(group) == len(used):
                        return tuple(sorted(group))
        return None


def wiring(watched: Watched) -> Wiring | None:
    """How the GPUs are connected; None: unknown. GPUs on NVLink switches reach each other."""
    topology = watched.topology
    if topology is None:
        return None
    switched = {gpu.index for gpu in watched.gpus if _on_switch(gpu)}
    ways, barred = {}, {}
    for i, j in combinations([gpu.index for gpu in watched.gpus], 2):
        pair, way = frozenset((i, j)), _cell(topology.levels, i, j)
        if i in switched and j in switched:
            ways[pair] = "NVL"
        elif way in WAYS:
            ways[pair] = way
        peer = _cell(topology.peer, i, j)
        if peer not in (None, "?", "OK"):
            barred[pair] = str(peer)
    return Wiring(ways, barred)


def _on_switch(gpu: Gpu) -> bool:
    return any(link.up and link.remote == "switch" for link in gpu.device.nvlinks)


def _cell(table: Sequence[Sequence[str]], row: int, column: int) -> str | None:
    return table[row][column] if row < len(table) and column < len(table[row]) else None
