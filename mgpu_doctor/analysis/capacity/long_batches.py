"""Ranks on which a batch that is larger than any so far would not fit, and how rare it is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.capacity.longest import Line, chance, line
from mgpu_doctor.analysis.devices.placement import Key, devices, placements, recent, shared
from mgpu_doctor.analysis.steps.align import Floats
from mgpu_doctor.analysis.steps.shares import after_warm_up
from mgpu_doctor.case.allocator import allocator
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.peaks import Rung, rungs

UNITS = ("tokens", "samples")
"""The first of which the peak is a line; padding is in the tokens."""
NEWEST = 60
"""Samples of a host or device that tell what it has left: the most that any of them leaves, so
that what comes and goes is no alarm."""


@dataclass(frozen=True, slots=True)
class Coming:
    """Bytes; sizes of batches in `unit`."""

    rank: Rank
    unit: str
    line: Line
    capacity: float
    """What the rank may hold of this memory."""
    largest: float
    """So far."""
    full: float
    """From here on a batch does not fit, by the lower end of the interval."""
    fits: float
    """Up to here it does, by the upper end."""
    chance: float
    """Of one batch to be larger than `full`."""
    batches: int
    """That were looked at for it."""


def coming(case: Case, where: str, least: float) -> list[Coming]:
    """`where`: `device` or `host`. `least`: bytes by which peaks must have risen with batches."""
    told = [(rank, ladder) for rank in case.ranks if (ladder := rungs(rank, where))]
    if not told:
        return []
    capacity = _of_devices(case) if where == "device" else _of_hosts(case)
    found = (_of_rank(rank, ladder, capacity, least) for rank, ladder in told)
    return [one for one in found if one is not None]


def _of_rank(
    rank: Rank, ladder: Sequence[Rung], capacity: Mapping[int, float], least: float
) -> Coming | None:
    room = capacity.get(rank.rank) if rank.rank is not None else None
    records = after_warm_up(rank.steps)
    if room is None or not len(records) or records["micro_batches"].max() > 1:
        return None
    peaks = [float(one.peak) for one in ladder]
    for unit in UNITS:
        sizes = [float(getattr(one, unit)) for one in ladder]
        fitted = line(sizes, peaks, least)
        full = fitted.full(room) if fitted is not None else None
        if fitted is None or full is None:
            continue
        loads: Floats = records[unit].astype(np.float64)
        full = max(full, sizes[-1])
        rare = chance(loads, full)
        if rare is None:
            continue
        fits = _fits(fitted, room, sizes[-1])
        return Coming(
            rank, unit, fitted, room, sizes[-1], full, fits, rare, int(np.count_nonzero(loads))
        )
    return None


def _fits(fitted: Line, room: float, largest: float) -> float:
    """The largest batch that fits by the upper end of the interval, no more than `largest` where
    that is uncertain: it did fit."""
    low, high = largest, max(largest, (room - fitted.base) / fitted.slope)
    for _ in range(40):
        middle = (low + high) / 2
        over = fitted.peak(middle) + fitted.either_way(middle) > room
        low, high = (low, middle) if over else (middle, high)
    return low


def _of_devices(case: Case) -> dict[int, float]:
    """Rank -> what torch may allocate, of ranks that are alone on their device: its whole without
    what is not torch's there (context, communicators, others)."""
    placed, hosts = placements(case), len({rank.host for rank in case.ranks})
    several = shared(placed)
    used: dict[Key, tuple[int, int]] = {}
    for sample in recent(case)[-NEWEST * hosts :]:
        for key, one in devices([sample]).items():
            if one.memory_total is not None and one.memory_used is not None:
                least = used.get(key, (0, one.memory_used))[1]
                used[key] = one.memory_total, min(least, one.memory_used)
    found: dict[int, float] = {}
    for rank in case.ranks:
        at, reserved = placed.get(-1 if rank.rank is None else rank.rank), allocator(rank).reserved
        if at is None or rank.rank is None or reserved is None or at.device in several:
            continue
        if at.device in used:
            whole, taken = used[at.device]
            found[rank.rank] = float(whole - max(0, taken - reserved))
    return found


def _of_hosts(case: Case) -> dict[int, float]:
    """Rank -> what its process may hold: what it does, and what its host or group has left."""
    samples: dict[str | None, deque[HostSample]] = defaultdict(lambda: deque(maxlen=NEWEST))
    for sample in case.host_samples:
        samples[sample.host].append(sample)
    found: dict[int, float] = {}
    for rank in case.ranks:
        for sample in (*samples.get(rank.host, ()), *samples.get(None, ())):
            used, whole = sample.memory_used, sample.memory_total
            own = sample.processes.get(rank.pid) if rank.pid is not None else None
            if used is None or not whole or own is None or rank.rank is None:
                continue
            room = float(own[1] + max(0, whole - used))
            found[rank.rank] = max(found.get(rank.rank, 0.0), room)
    return found
