"""Computing threads of a job on a host, and the cores that they may use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, Surroundings
from mgpu_doctor.case.model import Case, Rank

Around = Mapping[int, Surroundings]


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """Demand for cores by the ranks of one host, if all their threads are known."""

    host: str
    ranks: tuple[int, ...]
    threads: int
    """Computing threads of all ranks together."""
    most_threads: int
    """Most computing threads of one rank."""
    workers: float
    """Cores' worth of time that loader workers use; 0 where they were not seen."""
    cores: float | None
    """Cores' worth of time that the ranks may use together."""
    queueing: float | None
    """Share of time in which a main thread waited for a core, median of the ranks."""
    outside: float | None
    """Cores that were busy with other things than this job."""

    @property
    def full(self) -> bool:
        """Whether more wants to compute than can."""
        return self.cores is not None and self.threads + round(self.workers) > self.cores

    @property
    def alone(self) -> bool:
        """Whether the threads are more than the cores without any workers."""
        return self.cores is not None and self.threads > self.cores


def measure_cpu_demand(case: Case, around: Around) -> tuple[CpuDemand, ...]:
    """Hosts in order of their names; those where a rank's threads are unknown are left out."""
    by_host: dict[str, list[Rank]] = {}
    for rank in case.ranks:
        if rank.rank is not None and rank.pid is not None:
            by_host.setdefault(rank.host, []).append(rank)
    cpu_demands = [_demand_of_host(host, by_host[host], around) for host in sorted(by_host)]
    return tuple(cpu_demand for cpu_demand in cpu_demands if cpu_demand is not None)


def _demand_of_host(host: str, ranks: Sequence[Rank], around: Around) -> CpuDemand | None:
    threads = [rank.metadata.threads for rank in ranks]
    known = [count for count in threads if count is not None]
    if len(known) < len(ranks):
        return None
    seen = [around.get(rank.rank, UNSEEN) if rank.rank is not None else UNSEEN for rank in ranks]
    queues = [demand.queueing for demand in seen if demand.queueing is not None]
    outside = [demand.outside for demand in seen if demand.outside is not None]
    return CpuDemand(
        host=host,
        ranks=tuple(rank.rank for rank in ranks if rank.rank is not None),
        threads=sum(known),
        most_threads=max(known),
        workers=sum(
            _busy_workers(rank, surroundings)
            for rank, surroundings in zip(ranks, seen, strict=True)
        ),
        cores=_room(ranks, seen),
        queueing=float(np.median(queues)) if queues else None,
        outside=max(outside, default=None),
    )


def _busy_workers(rank: Rank, around: Surroundings) -> float:
    """Children that only sleep want no core."""
    children = around.children
    loads = any(loader.workers for loader in rank.metadata.loaders)
    if not loads or children is None or children.running is None:
        return 0.0
    return children.count * min(1.0, children.running + (children.queueing or 0.0))


def _room(ranks: Sequence[Rank], seen: Sequence[Surroundings]) -> float | None:
    """Cores by affinity, or by the quotas of their control groups if that is less."""
    allowed = [surroundings.cores for surroundings in seen if surroundings.cores]
    affinities = [rank.metadata.affinity for rank in ranks]
    cores: float | None
    if len(allowed) == len(seen):
        cores = len(frozenset().union(*allowed))
    else:
        # Without core numbers it is unknown which cores the ranks share.
        alike = {count for count in affinities if count is not None}
        cores = alike.pop() if len(alike) == 1 and None not in affinities else None
    quotas = {
        surroundings.group: surroundings.quota
        for surroundings in seen
        if surroundings.group and surroundings.quota
    }
    if any(surroundings.group is None for surroundings in seen) or not quotas:
        return cores
    quota = sum(quotas.values())
    return quota if cores is None else min(cores, quota)
