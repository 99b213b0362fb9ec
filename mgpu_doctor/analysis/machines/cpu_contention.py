"""A rank's share of its host: CPU time, waiting for cores, quota, other processes. Pure.

All rates are seconds (or page faults) per second of wall time, from counters at the first and the
last sample within the rank's steps after warm-up (or since a later moment).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import isnan
from operator import lt
from typing import NamedTuple, cast

import msgspec
import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, WAIT

from mgpu_doctor.analysis.machines.rank_samples import RankSamples, Reading, count_outside
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.host_samples import Task
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import PhaseClock
from mgpu_doctor.case.rank_device import device_kind


def idle(own: float | None, ran: float | None, step: float, around: Surroundings) -> float | None:
    """Seconds of a step's own work in which the main thread neither ran nor waited for a core.

    `own`: without collectives, in which some backends sleep and others spin; `ran`: CPU seconds of
    the main thread, all of which count as own work. None if unknown, and if a device does the work,
    because the host is idle meanwhile."""
    if own is None or ran is None or around.queueing is None or not around.computes_here:
        return None
    return max(0.0, own - ran - around.queueing * step)


class IdleShare(NamedTuple):
    """Bounds on the share of a phase, 0..1, in which the main thread was idle."""

    least: float
    most: float


def idle_share(rank: Rank, phase: int, around: Surroundings) -> IdleShare | None:
    """How much of a phase a rank was idle by its own records, by medians after warm-up; None:
    unknown. CPU time is known of whole steps only, so the rank may have been idle in the rest of
    its own work instead."""
    records = after_warm_up(rank.steps)
    phases = records["phases"]
    spent = phases[~np.isnan(phases[:, phase]), phase]
    if not len(spent) or device_kind(rank) != "cpu":
        return None  # beside a device the main thread is idle by design
    wall = records["wall_ns"] * 1e-9
    in_collectives = np.nan_to_num(phases[:, [WAIT, COMMUNICATION]]).sum(axis=1)
    ran = float(np.median(records["cpu_s"]))
    own, step = float(np.median(wall - in_collectives)), float(np.median(wall))
    seconds = idle(own, None if isnan(ran) else ran, step, around)
    in_phase = float(np.median(spent))
    if seconds is None or in_phase <= 0:
        return None
    most = min(1.0, seconds / in_phase)
    return IdleShare(min(most, max(0.0, seconds - (own - in_phase)) / in_phase), most)


LEAST_READINGS = 2
SAMPLED = 0.8
"""Share of a span of time that samples must cover."""
AROUND = 2.0
"""Seconds before and after a rank's steps in which samples still show how busy its host was."""
CROWDED = 0.8
"""Share of a host's cores that are busy, from which any rank there may have to wait for a core at
any time. A choice: other processes may be busy at the same times."""
LOADED = 2.0
"""Load average per core as the run began, if only that is known. A choice."""
POOLING = "tensorflow"
"""The framework whose main thread hands a step to a pool of threads and waits for them."""


class Children(msgspec.Struct, frozen=True):
    """Processes that a rank started, such as its loader's workers; each of them, on average."""

    count: int
    running: float | None
    queueing: float | None
    on_disk: float
    """Share of samples in uninterruptible sleep (state D): mostly a disk."""


class Surroundings(msgspec.Struct, frozen=True):
    """A rank's CPU use, in seconds per second of wall time after warm-up. None: not measured."""

    running: float | None = None
    """Time on a CPU, all threads together (may exceed 1)."""
    queueing: float | None = None
    """Time in which its main thread waited for a core or for its group's quota."""
    all_queueing: float | None = None
    """The same of all its threads together (may exceed 1), including communication threads."""
    throttled: float | None = None
    """Time in which its control group had used up its CPU quota, all cores together (may exceed
    1)."""
    main_running: float | None = None
    """Time on a CPU of the main thread, which a step waits for."""
    faulting: float | None = None
    """Page faults per second, all threads together."""
    in_kernel: float | None = None
    """Time in the kernel, all threads together (may exceed 1)."""
    on_disk: float | None = None
    """Share of samples, 0..1, with the main thread in uninterruptible sleep (state D)."""
    cores: frozenset[int] | None = None
    """The cores that it may use."""
    quota: float | None = None
    """Cores' worth of time that its control group may use."""
    group: str | None = None
    """The control group with this quota."""
    threads: int | None = None
    """Threads of its process."""
    outside: float | None = None
    """Cores that other processes than this job kept busy."""
    children: Children | None = None
    computes_here: bool = False
    """Whether the CPU does its forward and backward passes."""
    pooled: bool = False
    """Whether a pool of threads does them, and the main thread waits for it."""

    @property
    def without_core(self) -> float | None:
        """Time in which the main thread, or all threads of a pool (may exceed 1), waited for a core
        or for quota."""
        return self.all_queueing if self.pooled else self.queueing


UNSEEN = Surroundings()


def surroundings(sampled: RankSamples) -> dict[int, Surroundings]:
    """Rank -> its share of the host; ranks with fewer than two samples are left out."""
    known = {number: surroundings_of(sampled, number) for number in sampled.ranks}
    return {number: around for number, around in known.items() if around is not None}


def surroundings_of(
    sampled: RankSamples, number: int, since: float | None = None
) -> Surroundings | None:
    """Those of one rank; from a moment on (seconds since the epoch) and from the sample before it
    if fewer than two came later. None: it has fewer than two samples."""
    readings = sampled.readings(number)
    if len(readings) < LEAST_READINGS:
        return None
    if since is not None:
        later = sum(reading.at >= since for reading in readings)
        readings = readings[max(0, len(readings) - later - (later < LEAST_READINGS)) :]
    return _seen(readings, sampled.ranks[number])


def queued_between(readings: Sequence[Reading], begin: float, end: float) -> float | None:
    """Seconds between two moments (since the epoch) in which a rank's main thread waited for a
    core, or a little around them; None: unknown, or sampled in less than four fifths of the
    time."""
    if not readings:
        return None
    earlier = [reading for reading in readings if reading.at <= begin]
    later = [reading for reading in readings if reading.at >= end]
    first = earlier[-1] if earlier else readings[0]
    last = later[0] if later else readings[-1]
    sampled = min(last.at, end) - max(first.at, begin)
    queued, before = last.task.queued, first.task.queued
    if sampled < SAMPLED * (end - begin) or queued is None or before is None:
        return None
    return queued - before


def estimate_waits(sampled: RankSamples) -> dict[int, float]:
    """Rank -> share of the time, 0..1, in which it may have waited for a core that other processes
    than this job used while no other core of its host was free, while it trained; ranks for which
    that is unknown are left out. Less than all cores are left to others by a job that competes for
    them.

    Two samples of the host are enough, also of a run that is too short for `surroundings`; with one
    alone, its load average counts."""
    possible = {}
    for host, samples in sampled.by_host.items():
        outside, times = count_outside(samples), [sample.at for sample in samples]
        cores, load = samples[0].cores or 0, samples[0].load1
        for rank in sampled.ranks_of.get(host, ()):
            span = None if rank.rank is None else sampled.spans.get(rank.rank)
            if rank.rank is None or span is None or not cores:
                continue
            rows = _find_rows(times, *span)
            others = _rate((samples[row].at, outside[row]) for row in rows)
            busy = _rate((samples[row].at, samples[row].busy) for row in rows)
            if others is not None and busy is not None:
                possible[rank.rank] = min(others, _share_without_free_core(busy / cores, cores))
            elif load is not None:
                possible[rank.rank] = 1.0 if load >= LOADED * cores else 0.0
    return possible


def _find_rows(times: Sequence[float], begin: float, end: float) -> range:
    """Samples from the last one before to the first one after; if that is one alone, as in a run
    that ends before the next sample, those shortly before and after it, too."""
    earliest, latest = bisect_left(times, begin - AROUND), bisect_right(times, end + AROUND) - 1
    first = max(earliest, bisect_right(times, begin) - 1)
    last = min(latest, bisect_left(times, end))
    if last - first < 1:
        first, last = earliest, latest
    return range(first, last + 1)


def _share_without_free_core(used: float, cores: int) -> float:
    """Share of the time in which no core was free. `used`: share of the cores' time, on average;
    up to `CROWDED` the cores are busy independently of each other."""
    return 1.0 if used >= CROWDED else used**cores


def _seen(readings: Sequence[Reading], rank: Rank) -> Surroundings:
    computes_here = rank.metadata.clock is PhaseClock.CPU
    pooled = computes_here and rank.metadata.framework == POOLING
    if len(readings) < LEAST_READINGS:
        return Surroundings(computes_here=computes_here, pooled=pooled)
    last = readings[-1]
    times = [reading.at for reading in readings]
    tasks = [reading.task for reading in readings]
    in_order = all(map(lt, times, times[1:]))

    def rate(values: list[float | None]) -> float | None:
        known: list[float] = [] if None in values else cast("list[float]", values)
        if known and in_order and known == sorted(known):  # the usual case, in a third of the time
            return (known[-1] - known[0]) / (times[-1] - times[0])
        return _rate(zip(times, values, strict=True))

    return Surroundings(
        running=rate([reading.cpu for reading in readings]),
        queueing=rate([task.queued for task in tasks]),
        all_queueing=rate([task.all_queued for task in tasks]),
        throttled=_throttled_rate(readings),
        main_running=rate([task.ran for task in tasks]),
        faulting=rate([task.faults for task in tasks]),
        in_kernel=rate([task.kernel for task in tasks]),
        on_disk=_share_on_disk(tasks),
        cores=last.task.cores,
        quota=last.quota,
        group=last.group,
        threads=last.task.threads,
        outside=rate([reading.outside for reading in readings]),
        children=_children(readings),
        computes_here=computes_here,
        pooled=pooled,
    )


def _throttled_rate(readings: Sequence[Reading]) -> float | None:
    """Throttled time by the group with the least quota, while that group stays the same."""
    total = _Sum()
    for _, same in groupby(readings, lambda reading: reading.group):
        total.add([(reading.at, reading.throttled) for reading in same])
    return total.rate


def _children(readings: Sequence[Reading]) -> Children | None:
    pids = {pid for reading in readings for pid in reading.children}
    if not pids:
        return None
    present: list[Task] = []
    running, queueing = _Sum(), _Sum()
    for pid in pids:
        samples = [
            (reading.at, *reading.children[pid]) for reading in readings if pid in reading.children
        ]
        present += [task for _, _, task in samples]
        age = samples[0][2].age
        start = samples[0][0] - age if age is not None else 0.0
        # It started while it was watched, from nothing: most workers live for an epoch only.
        born = [(start, 0.0)] if start >= readings[0].at else []
        running.add([*born, *((at, cpu) for at, cpu, _ in samples)])
        queueing.add([*born, *((at, task.queued) for at, _, task in samples)])
    return Children(
        count=max(1, round(len(present) / len(readings))),
        running=running.rate,
        queueing=queueing.rate,
        on_disk=_share_on_disk(present),
    )


class _Sum:
    """The growth rate of counters over the time in which they were read."""

    def __init__(self) -> None:
        self._grown = self._seconds = 0.0

    def add(self, counter: Iterable[tuple[float, float | None]]) -> None:
        """Adds a counter. Time in which it fell or was not read does not count: its process or
        thread is another one then."""
        grown, seconds = self._grown, self._seconds
        before = 0.0
        old: float | None = None
        for at, new in counter:
            if old is not None and new is not None and new >= old and at > before:
                grown += new - old
                seconds += at - before
            before, old = at, new
        self._grown, self._seconds = grown, seconds

    @property
    def rate(self) -> float | None:
        return self._grown / self._seconds if self._seconds else None


def _rate(counter: Iterable[tuple[float, float | None]]) -> float | None:
    total = _Sum()
    total.add(counter)
    return total.rate


def _share_on_disk(tasks: Sequence[Task]) -> float:
    return sum(task.state == "D" for task in tasks) / len(tasks)
