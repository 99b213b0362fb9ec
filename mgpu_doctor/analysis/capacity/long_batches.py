"""Ranks on which a batch larger than any so far would not fit, and how soon it may come.

The peak is a straight line over the size of the batch: what a step allocates besides activations
does not depend on it, and activations take a fixed number of bytes per sample or token (measured
within 0.3 %: docs/plan.md). Only the highest peak so far can be read, so the line is fitted through
the moments at which the largest batch so far and the highest peak so far rose.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from mgpu_doctor.analysis.machines.rank_devices import Key, devices, placements, recent, shared
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Rank
from mgpu_doctor.case.process_metadata import MemoryPeak

UNITS = ("tokens", "samples")
"""The first unit in which the peak is linear; tokens include padding."""
NEWEST = 60
"""Samples of a host or device that show what it has left: the most that any of them leaves, so
that what comes and goes is no alarm."""


@dataclass(frozen=True, slots=True)
class LongBatch:
    """Bytes; sizes of batches in `unit`."""

    rank: Rank
    unit: str
    line: PeakLine
    capacity: float
    """Bytes of this memory that the rank may hold."""
    largest: float
    """The largest batch so far."""
    full: float
    """The smallest batch that does not fit, by the lower end of the interval."""
    fits: float
    """Up to here it does, by the upper end."""
    chance: float
    """Chance that one batch is larger than `full`."""
    batches: int
    """Number of batches in the estimate."""


def find_long_batches(case: Case, where: str, least: float) -> list[LongBatch]:
    """`where`: `device` or `host`. `least`: bytes by which peaks must have risen with batches."""
    candidates = [
        (rank, peak_history)
        for rank in case.ranks
        if (peak_history := rank.metadata.memory_peaks.history(where))
    ]
    if not candidates:
        return []
    capacity = _of_devices(case) if where == "device" else _of_hosts(case)
    long_batches = (
        _of_rank(rank, peak_history, capacity, least) for rank, peak_history in candidates
    )
    return [batch for batch in long_batches if batch is not None]


def _of_rank(
    rank: Rank, peak_history: Sequence[MemoryPeak], capacity: Mapping[int, float], least: float
) -> LongBatch | None:
    room = capacity.get(rank.rank) if rank.rank is not None else None
    records = after_warm_up(rank.steps)
    if room is None or not len(records) or records["micro_batches"].max() > 1:
        return None
    peaks = [float(memory_peak.peak) for memory_peak in peak_history]
    for unit in UNITS:
        sizes = [float(getattr(entry, unit)) for entry in peak_history]
        fitted = fit_line(sizes, peaks, least)
        full = fitted.full(room) if fitted is not None else None
        if fitted is None or full is None:
            continue
        loads: Floats = records[unit].astype(np.float64)
        full = max(full, sizes[-1])
        rare = chance_beyond(loads, full)
        if rare is None:
            continue
        fits = _fits(fitted, room, sizes[-1])
        return LongBatch(
            rank, unit, fitted, room, sizes[-1], full, fits, rare, int(np.count_nonzero(loads))
        )
    return None


def _fits(fitted: PeakLine, room: float, largest: float) -> float:
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
        for key, device in devices([sample]).items():
            if device.memory_total is not None and device.memory_used is not None:
                least = used.get(key, (0, device.memory_used))[1]
                used[key] = device.memory_total, min(least, device.memory_used)
    capacities: dict[int, float] = {}
    for rank in case.ranks:
        at, reserved = (
            placed.get(-1 if rank.rank is None else rank.rank),
            rank.metadata.device_memory.reserved,
        )
        if at is None or rank.rank is None or reserved is None or at.device in several:
            continue
        if at.device in used:
            whole, taken = used[at.device]
            capacities[rank.rank] = float(whole - max(0, taken - reserved))
    return capacities


def _of_hosts(case: Case) -> dict[int, float]:
    """Rank -> what its process may hold: what it does, and what its host or group has left."""
    samples: dict[str | None, deque[HostSample]] = defaultdict(lambda: deque(maxlen=NEWEST))
    for sample in case.host_samples:
        samples[sample.host].append(sample)
    capacities: dict[int, float] = {}
    for rank in case.ranks:
        for sample in (*samples.get(rank.host, ()), *samples.get(None, ())):
            used, whole = sample.memory_used, sample.memory_total
            own = sample.processes.get(rank.pid) if rank.pid is not None else None
            if used is None or not whole or own is None or rank.rank is None:
                continue
            room = float(own[1] + max(0, whole - used))
            capacities[rank.rank] = max(capacities.get(rank.rank, 0.0), room)
    return capacities


LEAST_POINTS = 5
LEAST_LOADS = 4
"""Different batch sizes that the entries must have."""
SPAN = 0.2
"""Share of the largest batch by which batches must differ: points close together define no line."""
EXPLAINED = 0.95
"""Share of the entries' variance that the line must explain."""
MASKED = 0.05
"""Share of the whole rise. Peaks this close to the first entry may have another cause than a batch:
loading, the first step, or the launcher's peak, which a process inherits."""
LEAST_BATCHES = 150
TAIL = 0.1
"""Share of the largest batches, from which larger ones are predicted."""
BOUND = 3
"""The largest size must occur this often to count as a bound (`max_length`)."""


@dataclass(frozen=True, slots=True)
class PeakLine:
    """Bytes over samples or tokens of a step."""

    base: float
    slope: float
    points: int
    _middle: float
    _spread: float
    """Sum of squares of the loads about their mean."""
    _error: float
    """Standard deviation of what is left."""

    def peak(self, load: float) -> float:
        return self.base + self.slope * load

    def either_way(self, load: float) -> float:
        """Half of the interval in which the peak of one such batch lies by 95 %."""
        free = self.points - 2
        quantile = 1.96 + 2.37 / free + 3.6 / free**2  # Student's, within 1 % from 3 on
        far = (load - self._middle) ** 2 / self._spread
        return quantile * self._error * sqrt(1 + 1 / self.points + far)

    def full(self, capacity: float) -> float | None:
        """The smallest load whose peak lies above `capacity` by the interval's lower end; None:
        no load does for sure."""
        low = max(0.0, (capacity - self.base) / self.slope)
        high = low
        for _ in range(40):
            high = max(1.0, 2 * high)
            if self.peak(high) - self.either_way(high) > capacity:
                break
        else:
            return None
        for _ in range(60):
            middle = (low + high) / 2
            over = self.peak(middle) - self.either_way(middle) > capacity
            low, high = (low, middle) if over else (middle, high)
        return high


def fit_line(loads: Sequence[float], peaks: Sequence[float], least: float) -> PeakLine | None:
    """The line through the entries of a history, in their order; None: peaks do not follow the
    batches for sure, or by less than `least` bytes."""
    if len(peaks) < LEAST_POINTS:
        return None
    x, y = np.asarray(loads, dtype=np.float64), np.asarray(peaks, dtype=np.float64)
    seen = y > y[0] + MASKED * (y[-1] - y[0])
    x, y = x[seen], y[seen]
    if len(x) < LEAST_POINTS or len(np.unique(x)) < LEAST_LOADS:
        return None
    if x[0] <= 0 or x[-1] - x[0] < SPAN * x[-1] or y[-1] - y[0] < least:
        return None
    middle, spread = float(x.mean()), float(((x - x.mean()) ** 2).sum())
    slope = float(((x - middle) * (y - y.mean())).sum()) / spread
    base = float(y.mean()) - slope * middle
    left = float(((y - base - slope * x) ** 2).sum())
    whole = float(((y - y.mean()) ** 2).sum())
    if slope <= 0 or left > (1 - EXPLAINED) * whole:
        return None
    return PeakLine(base, slope, len(x), middle, spread, sqrt(left / (len(x) - 2)))


def chance_beyond(loads: Floats, beyond: float) -> float | None:
    """The probability that a batch is larger than `beyond`. 0: batches have an upper bound. None:
    too few batches, or they do not vary.

    If it is rarer than `TAIL`, it comes from a generalized Pareto distribution of the largest
    batches, fitted by probability-weighted moments (Hosking and Wallis, Technometrics 29, 1987) and
    never heavier than an exponential one."""
    known = np.sort(loads[loads > 0])
    count = len(known)
    if count < LEAST_BATCHES or known[0] == known[-1]:
        return None
    if int((known == known[-1]).sum()) >= BOUND:
        return 0.0 if beyond >= known[-1] else float((known > beyond).mean())
    if beyond < known[int(count * (1 - TAIL))]:
        return float((known > beyond).mean())
    least = float(known[int(count * (1 - TAIL))])
    excess = known[known > least] - least
    shape, scale = _pareto(excess)
    share, far = len(excess) / count, (beyond - least) / scale
    if shape == 0:
        return share * exp(-far)
    left = 1 + shape * far
    return share * float(left ** (-1 / shape)) if left > 0 else 0.0


def _pareto(excess: Floats) -> tuple[float, float]:
    """Shape (0: exponential; below: there is an end) and scale. `excess` ascends."""
    places = (np.arange(1, len(excess) + 1) - 0.35) / len(excess)
    mean, weighted = float(excess.mean()), float((excess * (1 - places)).mean())
    apart = mean - 2 * weighted  # above 0: weights are less than a half on average, and descend
    shape = 2 - mean / apart
    if shape >= 0:
        return 0.0, mean
    return shape, 2 * mean * weighted / apart
