"""Whose memory grows from step to step, on its device or on its host, and when that is full.

A rank's own readings at the ends of steps come first. A box of an older writer has none; then the
samples of its process serve, a second or more apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.capacity.growth import LEAST_POINTS, Growth, growth
from mgpu_doctor.analysis.devices.placement import Key, Placement, devices, placements, recent
from mgpu_doctor.analysis.steps.align import Floats
from mgpu_doctor.analysis.steps.shares import after_warm_up
from mgpu_doctor.case.allocator import allocator
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.case.model import Case, Rank, Records
from mgpu_doctor.recording.columns import Columns

HINT = 1 / 3
"""Of the growth that is looked for: with less between the medians of the first and of the last
third it cannot be there (a line has two thirds of it), and the pairs need not be looked at."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A rank whose memory grows. Bytes a step."""

    rank: Rank
    growth: Growth
    source: str
    free: float | None = None
    """Bytes that are left for it; None: unknown."""
    together: float = 1.0
    """What all that share these bytes grow by, as a multiple of its own growth."""

    limited: bool = False
    """By the process' own limits of memory."""

    @property
    def left(self) -> tuple[float, float, float] | None:
        """Steps until it is full: expected, at the earliest and at the latest by 95 %."""
        if self.free is None:
            return None
        slopes = self.growth.slope, self.growth.high, self.growth.low
        expected, earliest, latest = (self.free / (one * self.together) for one in slopes)
        return expected, earliest, latest


def filling_devices(case: Case, least: float) -> list[Filling]:
    """Ranks whose allocated device memory has grown by `least` bytes for sure."""
    found = []
    for rank in case.ranks:
        grown = _of_records(rank, "device_bytes", least)
        if grown is not None:
            found.append(Filling(rank, grown, "allocated at the ends of steps"))
    if not found:
        return []
    free, placed = _free_on_devices(case), placements(case)
    keys = [_key(one.rank, placed) for one in found]
    sums: dict[Key | None, float] = defaultdict(float)
    for one, key in zip(found, keys, strict=True):
        sums[key] += one.growth.slope
    return [
        replace(one, free=free[key], together=sums[key] / one.growth.slope)
        if key is not None and key in free
        else one
        for one, key in zip(found, keys, strict=True)
    ]


def filling_hosts(case: Case, step_seconds: float | None, least: float) -> list[Filling]:
    """Ranks whose process has grown by `least` bytes for sure."""
    found = []
    samples = _by_host(case)
    for rank in case.ranks:
        source = "resident at the ends of steps"
        grown = _of_records(rank, "resident_bytes", least)
        if step_seconds and not rank.steps["resident_bytes"].any():
            at, taken = _sampled(samples(rank.host), rank)
            grown, source = _grown(at / step_seconds, taken, least), "host samples"
        if grown is not None:
            found.append(Filling(rank, grown, source))
    sums: dict[str, float] = defaultdict(float)
    for one in found:
        sums[one.rank.host] += one.growth.slope
    shared = (
        replace(
            one,
            free=_free_on_host(case, one.rank.host),
            together=sums[one.rank.host] / one.growth.slope,
        )
        for one in found
    )
    return [_within_limits(case, one) for one in shared]


def _of_records(rank: Rank, name: str, least: float) -> Growth | None:
    """Of its steps; where these are too few to tell, of the whole run by windows of time."""
    for records, late in ((rank.steps, after_warm_up), (rank.history, _after_the_first)):
        if _differs(records, name, least):
            grown = _grown(*_column(late(records), name), least)
            if grown is not None:
                return grown
    return None


def _differs(records: Records, name: str, least: float) -> bool:
    """Whether there can be such growth at all: of most ranks nothing else need be computed."""
    if len(records) < LEAST_POINTS or name not in (records.dtype.names or ()):
        return False
    if least > 0 and isinstance(records, Columns) and records.same(name) is not None:
        return False
    values = records[name]
    most = int(values.max())
    return most >= least and most - int(values.min(where=values > 0, initial=most)) >= least


def _after_the_first(windows: Records) -> Records:
    """Without the one in which the run warmed up."""
    return windows[1:]


def _column(records: Records, name: str) -> tuple[Floats, Floats]:
    """Steps and bytes where bytes are known."""
    known = records[records[name] > 0]
    return known["step"].astype(np.float64), known[name].astype(np.float64)


def _grown(places: Floats, values: Floats, least: float) -> Growth | None:
    third = len(values) // 3
    if len(values) < LEAST_POINTS:
        return None
    if np.median(values[-third:]) - np.median(values[:third]) < HINT * least:
        return None
    found = growth(places, values)
    return found if found is not None and found.sure >= least else None


def _by_host(case: Case) -> Callable[[str], Sequence[HostSample]]:
    """Host -> its samples and those that do not tell where they are from."""
    found: dict[str | None, list[HostSample]] = defaultdict(list)
    for sample in case.host_samples:
        found[sample.host].append(sample)
    homeless = found.pop(None, [])
    if not homeless:
        return lambda host: found.get(host, ())
    return lambda host: [one for one in case.host_samples if one.host in (None, host)]


def _sampled(samples: Sequence[HostSample], rank: Rank) -> tuple[Floats, Floats]:
    """Seconds and bytes of its process, from the moment on at which it was warm."""
    if len(samples) < LEAST_POINTS:
        return np.empty(0), np.empty(0)
    steps = after_warm_up(rank.steps)
    warm = float(steps["end_ns"][0]) * 1e-9 + rank.clock_offset if len(steps) else np.inf
    rows = [
        (sample.at, float(process[1]))
        for sample in samples
        if rank.pid is not None
        and (process := sample.processes.get(rank.pid)) is not None
        and sample.at >= warm
        and (rank.ended is None or sample.at < rank.ended)
    ]
    return np.array([at for at, _ in rows]), np.array([resident for _, resident in rows])


def _free_on_host(case: Case, host: str) -> float | None:
    """By the newest sample that tells it: of the control group where that has a limit."""
    for sample in reversed(case.host_samples):
        used, whole = sample.memory_used, sample.memory_total
        if used is not None and whole and sample.host in (None, host):
            return float(max(0, whole - used))
    return None


def _within_limits(case: Case, one: Filling) -> Filling:
    """Whatever is full first: the host, or what the process itself may have."""
    pid, host = one.rank.pid, one.rank.host
    for sample in reversed(case.host_samples):
        task = sample.tasks.get(pid) if pid is not None and sample.host in (None, host) else None
        if pid is None or task is None:
            continue
        if task.room is None:
            return one
        since = one.growth.last - sample.processes.get(pid, (0.0, one.growth.last))[1]
        own = replace(one, free=max(0.0, task.room - since), together=1.0, limited=True)
        return min((one, own), key=lambda each: each.left[0] if each.left else np.inf)
    return one


def _key(rank: Rank, placed: Mapping[int, Placement]) -> Key | None:
    at = placed.get(rank.rank) if rank.rank is not None else None
    return at.device if at is not None else None


def _free_on_devices(case: Case) -> dict[Key, float]:
    """What the device has left, and what the ranks there keep for themselves unused."""
    placed = placements(case)
    found = {}
    for key, device in devices(recent(case)).items():
        if device.memory_total is not None and device.memory_used is not None:
            here = (one for one in case.ranks if _key(one, placed) == key)
            cached = sum(_cached(here))
            found[key] = float(max(0, device.memory_total - device.memory_used) + cached)
    return found


def _cached(ranks: Iterable[Rank]) -> Iterable[int]:
    for rank in ranks:
        memory = allocator(rank)
        if memory.reserved is not None and memory.allocated is not None:
            yield max(0, memory.reserved - memory.allocated)
