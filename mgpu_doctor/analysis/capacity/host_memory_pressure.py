"""Hosts whose memory the job nearly fills all the time, whether or not anything grows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case, Rank

NEWEST = 60
"""Samples that are looked at."""
LEAST = 10
LASTING = 0.8
"""Share of them in which it must be full."""


@dataclass(frozen=True, slots=True)
class FullHost:
    """Bytes of the newest sample, without page cache that could be dropped."""

    host: str
    used: int
    total: int
    of_ranks: dict[int, int]
    """Rank -> what its process has resident."""
    of_others: int
    """Resident bytes of the job's other processes, mainly data-loader workers."""
    samples: int
    pressure: float | None
    """Share of the time in which some task of the machine was stalled on memory."""

    @property
    def of_job(self) -> int:
        """No more than is used, as shared pages count for each process."""
        return min(self.used, sum(self.of_ranks.values()) + self.of_others)


def find_full_hosts(case: Case, full: float) -> list[FullHost]:
    """Hosts that were full beyond this share in most samples since the job was warm. A sample that
    does not report its page cache counts as not full."""
    samples: dict[str | None, list[HostSample]] = defaultdict(list)
    for sample in case.host_samples:
        if sample.processes:
            samples[sample.host].append(sample)
    homeless = samples.pop(None, [])
    ranks: dict[str, list[Rank]] = defaultdict(list)
    for rank in case.ranks:
        ranks[rank.host].append(rank)
    hosts = ((host, here, samples.get(host, homeless)) for host, here in ranks.items())
    full_hosts = (_full(host, here, seen, full) for host, here, seen in hosts)
    return [host for host in full_hosts if host is not None]


def _full(
    host: str, ranks: Sequence[Rank], samples: Sequence[HostSample], full: float
) -> FullHost | None:
    if sum(_share(sample) >= full for sample in samples) < LASTING * LEAST:
        return None
    warm = max(map(_warm, ranks))
    ended = min((rank.ended for rank in ranks if rank.ended is not None), default=float("inf"))
    seen = [sample for sample in samples if warm <= sample.at < ended][-NEWEST:]
    often = sum(_share(host_sample) >= full for host_sample in seen)
    if len(seen) < LEAST or often < LASTING * len(seen) or _share(seen[-1]) < full:
        return None
    return _brim(host, ranks, seen)


def _warm(rank: Rank) -> float:
    steps = after_warm_up(rank.steps)
    return float(steps["end_ns"][0]) * 1e-9 + rank.clock_offset if len(steps) else float("inf")


def _share(host_sample: HostSample) -> float:
    if (
        host_sample.memory_used is None
        or not host_sample.memory_total
        or host_sample.memory_cache is None
    ):
        return 0.0
    return (host_sample.memory_used - host_sample.memory_cache) / host_sample.memory_total


def _brim(host: str, ranks: Sequence[Rank], seen: Sequence[HostSample]) -> FullHost:
    newest = seen[-1]
    own = {rank.pid: rank.rank for rank in ranks if rank.pid is not None and rank.rank is not None}
    return FullHost(
        host=host,
        used=(newest.memory_used or 0) - (newest.memory_cache or 0),
        total=newest.memory_total or 0,
        of_ranks={
            own[pid]: resident for pid, (_, resident) in newest.processes.items() if pid in own
        },
        of_others=sum(size for pid, (_, size) in newest.processes.items() if pid not in own),
        samples=len(seen),
        pressure=_pressure(seen),
    )


def _pressure(seen: Sequence[HostSample]) -> float | None:
    readings = [
        (host_sample.at, host_sample.pressure["memory"])
        for host_sample in seen
        if "memory" in host_sample.pressure
    ]
    if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
        return None
    return max(
        0.0, min(1.0, (readings[-1][1] - readings[0][1]) / (readings[-1][0] - readings[0][0]))
    )
