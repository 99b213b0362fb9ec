"""Ranks whose memory grows from step to step, on the device or the host, and when it will be full.

A rank's own readings at the ends of steps come first. A recording of an older version has none;
then samples of its process serve, a second or more apart.

The slope is Theil and Sen's (median of the slopes of all pairs) with Sen's confidence interval
(Journal of the American Statistical Association 63, 1968); whether there is one is decided by the
Mann-Kendall test. Both are robust: spikes, drops after garbage collection and heavy tails do not
move them. Comparing thirds of the series separates a cache that fills up from steady growth;
comparing the last third with the first rules out growth that slows down (an allocator that
fragments with varying sizes, seen with a mixture of experts).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.analysis.machines.rank_devices import Key, Placement, devices, placements, recent
from mgpu_doctor.analysis.steps.step_alignment import Floats
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Rank, Records
from mgpu_doctor.recording.columns import Columns

HINT = 1 / 3
"""Share of the least growth that must lie between the medians of the first and last third. A line
has two thirds; with less, the pairs need not be computed."""


AT_ONCE = 64
"""Ranks whose records are looked at together."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """A rank whose memory grows, in bytes per step."""

    rank: Rank
    growth: Growth
    source: str
    free: float | None = None
    """Free bytes; None: unknown."""
    together: float = 1.0
    """Growth of all ranks that share these bytes, as a multiple of its own."""

    limited: bool = False
    """Whether the process's own memory limit is reached first."""

    @property
    def left(self) -> tuple[float, float, float] | None:
        """Steps until it is full: expected, at the earliest and at the latest by 95 %."""
        if self.free is None:
            return None
        slopes = self.growth.slope, self.growth.high, self.growth.low
        expected, earliest, latest = (self.free / (slope * self.together) for slope in slopes)
        return expected, earliest, latest


def find_growing_devices(case: Case, least: float) -> list[MemoryGrowth]:
    """Ranks whose allocated device memory has grown by `least` bytes for sure."""
    growths = []
    for rank, grown in zip(case.ranks, _in_records(case.ranks, "device_bytes", least), strict=True):
        if grown is not None:
            growths.append(MemoryGrowth(rank, grown, "allocated at the ends of steps"))
    if not growths:
        return []
    free, placed = _free_on_devices(case), placements(case)
    keys = [_key(growth.rank, placed) for growth in growths]
    sums: dict[Key | None, float] = defaultdict(float)
    for growth, key in zip(growths, keys, strict=True):
        sums[key] += growth.growth.slope
    return [
        replace(growth, free=free[key], together=sums[key] / growth.growth.slope)
        if key is not None and key in free
        else growth
        for growth, key in zip(growths, keys, strict=True)
    ]


def find_growing_hosts(case: Case, step_seconds: float | None, least: float) -> list[MemoryGrowth]:
    """Ranks whose process has grown by `least` bytes for sure."""
    growths = []
    samples, name = _by_host(case), "resident_bytes"
    for rank, recorded in zip(case.ranks, _in_records(case.ranks, name, least), strict=True):
        grown, source = recorded, "resident at the ends of steps"
        if step_seconds and not _is_known(rank.steps, name):
            at, taken = _sampled(samples(rank.host), rank)
            grown, source = _grown(at / step_seconds, taken, least), "host samples"
        if grown is not None:
            growths.append(MemoryGrowth(rank, grown, source))
    sums: dict[str, float] = defaultdict(float)
    for growth in growths:
        sums[growth.rank.host] += growth.growth.slope
    shared = (
        replace(
            growth,
            free=_free_on_host(case, growth.rank.host),
            together=sums[growth.rank.host] / growth.growth.slope,
        )
        for growth in growths
    )
    return [_within_limits(case, growth) for growth in shared]


def _in_records(ranks: Sequence[Rank], name: str, least: float) -> list[Growth | None]:
    """For each rank, the growth in its step records, else in the history of the whole run."""
    found: list[Growth | None] = [None] * len(ranks)
    for all_records, late in (
        ([rank.steps for rank in ranks], after_warm_up),
        ([rank.history for rank in ranks], _after_the_first),
    ):
        for place in _find_differing(all_records, name, least):
            if found[place] is None:
                found[place] = _grown(*_column(late(all_records[place]), name), least)
    return found


def _find_differing(all_records: Sequence[Records], name: str, least: float) -> list[int]:
    """The places of ranks with which there can be such growth: mostly none."""
    places = [
        place
        for place, records in enumerate(all_records)
        if len(records) >= LEAST_POINTS
        and not (least > 0 and isinstance(records, Columns) and records.same(name) is not None)
    ]
    differing = []
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        columns = [all_records[place][name] for place in some]
        values, first = np.concatenate(columns), np.cumsum([0, *map(len, columns[:-1])])
        most = np.maximum.reduceat(values, first).tolist()
        known = np.where(values > 0, values, np.iinfo(values.dtype).max)
        fewest = np.minimum.reduceat(known, first).tolist()
        differing += [
            place
            for place, high, low in zip(some, most, fewest, strict=True)
            if high >= least and high - low >= least
        ]
    return differing


def _is_known(records: Records, name: str) -> bool:
    """Whether any record has such a value."""
    if isinstance(records, Columns) and (same := records.same(name)) is not None:
        return any(same)
    return bool(records[name].any())


def _after_the_first(windows: Records) -> Records:
    """The windows without the first, in which the run warmed up."""
    return windows[1:]


def _column(records: Records, name: str) -> tuple[Floats, Floats]:
    """Steps and bytes of the records in which bytes are known."""
    known = records[records[name] > 0]
    return known["step"].astype(np.float64), known[name].astype(np.float64)


def _grown(places: Floats, values: Floats, least: float) -> Growth | None:
    third = len(values) // 3
    if len(values) < LEAST_POINTS:
        return None
    if np.median(values[-third:]) - np.median(values[:third]) < HINT * least:
        return None
    growth = fit_growth(places, values)
    return growth if growth is not None and growth.sure >= least else None


def _by_host(case: Case) -> Callable[[str], Sequence[HostSample]]:
    """Host -> its samples, and those without a host."""
    by_host: dict[str | None, list[HostSample]] = defaultdict(list)
    for sample in case.host_samples:
        by_host[sample.host].append(sample)
    homeless = by_host.pop(None, [])
    if not homeless:
        return lambda host: by_host.get(host, ())
    return lambda host: [
        host_sample for host_sample in case.host_samples if host_sample.host in (None, host)
    ]


def _sampled(samples: Sequence[HostSample], rank: Rank) -> tuple[Floats, Floats]:
    """Seconds and bytes of the rank's process, after warm-up."""
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
    """Free bytes in the newest sample, of the control group if it has a limit; None: unknown."""
    for sample in reversed(case.host_samples):
        used, whole = sample.memory_used, sample.memory_total
        if used is not None and whole and sample.host in (None, host):
            return float(max(0, whole - used))
    return None


def _within_limits(case: Case, memory_growth: MemoryGrowth) -> MemoryGrowth:
    """The growth against what is full first: the host, or the process's own limit."""
    pid, host = memory_growth.rank.pid, memory_growth.rank.host
    for sample in reversed(case.host_samples):
        task = sample.tasks.get(pid) if pid is not None and sample.host in (None, host) else None
        if pid is None or task is None:
            continue
        if task.room is None:
            return memory_growth
        since = (
            memory_growth.growth.last
            - sample.processes.get(pid, (0.0, memory_growth.growth.last))[1]
        )
        own = replace(memory_growth, free=max(0.0, task.room - since), together=1.0, limited=True)
        return min((memory_growth, own), key=lambda each: each.left[0] if each.left else np.inf)
    return memory_growth


def _key(rank: Rank, placed: Mapping[int, Placement]) -> Key | None:
    at = placed.get(rank.rank) if rank.rank is not None else None
    return at.device if at is not None else None


def _free_on_devices(case: Case) -> dict[Key, float]:
    """Device -> free bytes, including what its ranks' allocators keep unused."""
    placed = placements(case)
    free = {}
    for key, device in devices(recent(case)).items():
        if device.memory_total is not None and device.memory_used is not None:
            here = (rank for rank in case.ranks if _key(rank, placed) == key)
            cached = sum(_cached(here))
            free[key] = float(max(0, device.memory_total - device.memory_used) + cached)
    return free


def _cached(ranks: Iterable[Rank]) -> Iterable[int]:
    for rank in ranks:
        memory = rank.metadata.device_memory
        if memory.reserved is not None and memory.allocated is not None:
            yield max(0, memory.reserved - memory.allocated)


MOST_POINTS = 200
"""All pairs of 200 points take 2 ms; longer series are thinned evenly."""
LEAST_POINTS = 30
SURE = 4.0
"""Standard deviations of Mann's and Kendall's statistic: with 200 healthy series of each kind there
was no false alarm."""
CONFIDENCE = 1.96
"""Standard deviations of the slope's interval: 95 %."""
LASTING = 0.25
"""Share of the whole slope that each third must have."""
THIRDS = 3
STEADY = 0.7
"""Share of the first third's slope that the last must have; with less, growth ends. An exponential
approach to a limit has as much up to 41 % of its way."""


@dataclass(frozen=True, slots=True)
class Growth:
    """In the unit of the values by the unit of the places; `low` and `high` bound it by 95 %."""

    slope: float
    low: float
    high: float
    last: float
    """The fitted value at the end."""
    places: float
    """Distance from the first place to the last."""

    @property
    def sure(self) -> float:
        """The growth at least, by the lower bound."""
        return self.low * self.places

    def until(self, full: float) -> float | None:
        """Places from the end until the line reaches `full`; None: never."""
        return max(0.0, full - self.last) / self.slope if self.slope > 0 else None


def fit_growth(places: Floats, values: Floats) -> Growth | None:
    """The fitted growth; None if it is not significant or not steady. `places` ascend."""
    known = np.isfinite(values)
    places, values = _thinned(places[known]), _thinned(values[known])
    if len(values) < LEAST_POINTS or places[-1] <= places[0]:
        return None
    slopes = _slopes(places, values)
    count = len(values)
    spread = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if _concordance(values) / spread <= SURE:
        return None
    slope = float(np.median(slopes))
    reach = CONFIDENCE * spread
    low = float(slopes[max(0, int((len(slopes) - reach) / 2))])
    high = float(slopes[min(len(slopes) - 1, int((len(slopes) + reach) / 2))])
    parts = zip(np.array_split(places, THIRDS), np.array_split(values, THIRDS), strict=True)
    each = [float(np.median(_slopes(*part))) for part in parts]
    if low <= 0 or min(each) < LASTING * slope or each[-1] < STEADY * each[0]:
        return None
    intercept = float(np.median(values - slope * places))
    last = intercept + slope * float(places[-1])
    return Growth(slope, low, high, last, float(places[-1] - places[0]))


def _thinned(values: Floats) -> Floats:
    if len(values) <= MOST_POINTS:
        return values
    chosen: Floats = values[np.linspace(0, len(values) - 1, MOST_POINTS).astype(int)]
    return chosen


def _slopes(places: Floats, values: Floats) -> Floats:
    """Slopes of all pairs, ascending."""
    first, second = np.triu_indices(len(values), 1)
    apart = places[second] - places[first]
    good = apart > 0
    slopes: Floats = np.sort((values[second] - values[first])[good] / apart[good])
    return slopes


def _concordance(values: Floats) -> float:
    """Rising pairs minus falling pairs, corrected for continuity."""
    first, second = np.triu_indices(len(values), 1)
    sum_ = float(np.sign(values[second] - values[first]).sum())
    return sum_ - float(np.sign(sum_))
