"""The samples of each rank while it trained: its processes, and what else its host did. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import structs

from mgpu_doctor.analysis.steps.warm_up import spans_after_warm_up
from mgpu_doctor.case.host_samples import HostSample, Task
from mgpu_doctor.case.model import Case, Rank

MOST_GENERATIONS = 8


class Reading(NamedTuple):
    """One sample of a rank. Counters are in seconds since its process began."""

    at: float
    task: Task
    cpu: float | None
    group: str | None
    """The control group above it with the least quota."""
    quota: float | None
    throttled: float | None
    outside: float | None
    """CPU seconds so far of everything on the host but this job."""
    children: Mapping[int, tuple[float | None, Task]]
    """pid -> CPU seconds so far, and the rest."""


_NO_CHILD: Mapping[int, tuple[float | None, Task]] = {}
"""Of most ranks: a dictionary of its own for each would take megabytes in a large job."""


class _Host(NamedTuple):
    """The samples of a host that hold processes of the job. Lists are as long as `samples`."""

    samples: Sequence[HostSample]
    outside: Sequence[float | None]
    """CPU seconds so far of everything but the job"""
    offspring: Sequence[Mapping[int, Sequence[int]]]
    """Rank's pid -> pids of its descendants that are not ranks"""


class RankSamples:
    """The ranks with a number and the samples of their hosts."""

    def __init__(self, case: Case) -> None:
        self.by_host: dict[str | None, list[HostSample]] = {}
        self.ranks_of: dict[str | None, list[Rank]] = {}
        """Host -> its ranks"""
        self.ranks: dict[int, Rank] = {}
        self.spans: dict[int, tuple[float, float] | None] = {}
        """Rank -> begin and end of its steps after warm-up; None: it has none"""
        self._hosts: dict[str | None, _Host] = {}
        for sample in case.host_samples:
            self.by_host.setdefault(sample.host, []).append(sample)
        for rank, span in zip(case.ranks, spans_after_warm_up(case.ranks), strict=True):
            if rank.rank is not None:
                self.ranks_of.setdefault(rank.host, []).append(rank)
                self.ranks[rank.rank] = rank
                self.spans[rank.rank] = span

    def readings(self, number: int) -> list[Reading]:
        """The samples of a rank within its steps after warm-up."""
        rank, span = self.ranks.get(number), self.spans.get(number)
        if rank is None or span is None or rank.pid is None:
            return []
        begin, end = span
        host, pid = self._host(rank.host), rank.pid
        main_thread_trains = rank.metadata.main_thread_trains is not False
        readings = []
        for sample, outside, offspring in zip(*host, strict=True):
            if not begin <= sample.at <= end:
                continue
            task = sample.tasks.get(pid)
            if task is None:
                continue
            if not main_thread_trains:
                task = structs.replace(task, ran=None, queued=None)
            own = offspring.get(pid)
            children = (
                {of: (_cpu(sample, of), sample.tasks[of]) for of in own} if own else _NO_CHILD
            )
            readings.append(
                Reading(
                    sample.at, task, _cpu(sample, pid), *_limit(task, sample), outside, children
                )
            )
        return readings

    def _host(self, name: str) -> _Host:
        known = self._hosts.get(name)
        if known is None:
            own = {rank.pid for rank in self.ranks_of[name] if rank.pid is not None}
            samples = [sample for sample in self.by_host.get(name, ()) if sample.tasks]
            offspring = [_offspring(sample.tasks, own) for sample in samples]
            known = self._hosts[name] = _Host(samples, count_outside(samples), offspring)
        return known


class _Limit(NamedTuple):
    """What a process's control groups allow it."""

    group: str | None = None
    """The group with the least quota."""
    quota: float | None = None
    throttled: float | None = None
    """Throttled seconds of the most throttled of nested groups."""


_UNKNOWN, _NONE = _Limit(), _Limit(throttled=0.0)


def _limit(task: Task, sample: HostSample) -> _Limit:
    if not task.limits:  # the usual case
        return _UNKNOWN if task.limits is None else _NONE
    groups = {name: sample.groups[name] for name in task.limits if name in sample.groups}
    quotas = {name: group.quota for name, group in groups.items() if group.quota}
    least = min(quotas, key=lambda name: quotas[name], default=None)
    throttled = [group.throttled for group in groups.values() if group.throttled is not None]
    quota = None if least is None else quotas[least]
    return _Limit(least, quota, max(throttled, default=None))


def _cpu(sample: HostSample, pid: int) -> float | None:
    known = sample.processes.get(pid)
    return None if known is None else known[0]


def count_outside(samples: Sequence[HostSample]) -> list[float | None]:
    """CPU seconds of everything but the job since the first sample, at each sample."""
    total: float | None = 0.0
    values: list[float | None] = [total] if samples else []
    for before, now in pairwise(samples):
        if total is None or before.busy is None or now.busy is None:
            total = None
        else:
            own = sum(_used_since(before, now, pid) for pid in now.processes)
            total += max(0.0, now.busy - before.busy - own)
        values.append(total)
    return values


def _used_since(before: HostSample, now: HostSample, pid: int) -> float:
    """CPU seconds that a process of the job used between two samples; all of its own if it was
    started meanwhile, as the workers of a loader are in each epoch."""
    used, earlier = now.processes[pid][0], before.processes.get(pid)
    if earlier is not None:
        return max(0.0, used - earlier[0])
    task = now.tasks.get(pid)
    is_new = task is not None and task.age is not None and task.age <= now.at - before.at
    return used if is_new else 0.0


def _offspring(tasks: Mapping[int, Task], ranks: set[int]) -> dict[int, list[int]]:
    """Rank's pid -> pids of its descendants that are not ranks."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in tasks.keys() - ranks:
        above: int | None = pid
        for _ in range(MOST_GENERATIONS):
            task = tasks.get(above) if above is not None else None
            above = task.parent if task is not None else None
            if above in ranks:
                children[above].append(pid)
                break
    return children
