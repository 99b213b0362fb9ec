"""Healthy jobs on hosts whose cores other processes use, too.

Each rank has a core of its own, on which it takes turns with other processes, a time slice each.
Their number changes now and then, as processes come, go and are moved between cores. Nothing is
wrong with any rank, but for a while one may get its core half as often as another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mgpu_doctor.case.host_samples import HostSample
from mgpu_doctor.case.model import Case
from tests.support.hosts import on_host
from tests.support.per_step_jobs import Seconds, case_of_seconds
from tests.support.synthetic import Fault, Synthetic, own_work

SLICE = 0.003
"""Seconds that a process runs before another one does: about what Linux gives it."""
EVERY = 1.0
"""Seconds between two samples of a host, as `run` takes them."""
BEFORE = 3.0
"""Seconds in which the host was as busy before the job began."""


@dataclass(frozen=True)
class BusyHost:
    """`others`: mean number of other processes that want a core, per core; `lasts`: mean seconds
    until it changes on a core."""

    others: float
    lasts: float


class _Core:
    """A core that a rank shares. `taken`: seconds that others have run on it since `now` was 0."""

    def __init__(self, host: BusyHost, random: np.random.Generator) -> None:
        self._host, self._random = host, random
        self.now = self.taken = self._until = 0.0
        self._others = 0
        self._left = SLICE * random.random()

    def run(self, seconds: float) -> float:
        """Wall seconds of so many seconds of the rank's work."""
        began = self.now
        while seconds > self._left:
            seconds -= self._left
            self._pass(self._left, idle=False)
            self._left = SLICE * (0.5 + self._random.random())
            self._pass(self._others * SLICE, idle=True)
        self._left -= seconds
        self._pass(seconds, idle=False)
        return self.now - began

    def wait(self, seconds: float) -> None:
        """The rank waits. The scheduler owes it a slice for that afterwards."""
        self._pass(seconds, idle=True)
        self._left = max(self._left, min(SLICE, seconds))

    def _pass(self, seconds: float, *, idle: bool) -> None:
        """`idle`: whether the rank leaves the core to others."""
        end = self.now + seconds
        while self.now < end:
            if self.now >= self._until:
                self._until = self.now + self._random.exponential(self._host.lasts)
                self._others = int(self._random.poisson(self._host.others))
            until = min(end, self._until)
            if idle and self._others:
                self.taken += until - self.now
            self.now = until


def make_busy_case(job: Synthetic, host: BusyHost, sleeps: Fault | None = None) -> Case:
    """The job on such a host, sampled as `run` does it. The main threads of the ranks were on a CPU
    for their work alone. `sleeps`: where a rank sleeps besides, at the end of its work."""
    work = own_work(job)
    random = np.random.default_rng(job.seed + 2)
    cores = [_Core(host, random) for _ in range(job.ranks)]
    for core in cores:
        core.wait(BEFORE)
    took = {phase: np.empty_like(seconds) for phase, seconds in work.items()}
    taken = np.empty((job.steps, job.ranks))
    for step in range(job.steps):
        own = np.zeros(job.ranks)
        for rank, core in enumerate(cores):
            for phase, values in work.items():
                took[phase][step, rank] = core.run(values[step, rank])
                own[rank] += took[phase][step, rank]
            if sleeps is not None and sleeps.rank == rank:
                seconds = sleeps.milliseconds * 1e-3
                core.wait(seconds)
                took[sleeps.phase][step, rank] += seconds
                own[rank] += seconds
        for rank, core in enumerate(cores):
            core.wait(own.max() - own[rank] + job.communication)
            taken[step, rank] = core.taken
    ran: Seconds = np.sum(list(work.values()), axis=0)
    case = case_of_seconds(took, fields={"cpu_s": ran}, communication=job.communication)
    return _sampled(on_host(case), ran, taken, EVERY * random.random())


def _sampled(case: Case, ran: Seconds, taken: Seconds, after: float) -> Case:
    """`ran`: CPU seconds of each step and rank; `taken`: what others have used of its core by the
    end of each step; `after`: seconds until the first sample."""
    ends = case.ranks[0].steps["end_ns"] * 1e-9
    first = ends[0] - BEFORE
    samples = []
    for at in np.arange(first + after, ends[-1], EVERY):
        used = [float(np.interp(at, ends, each, left=0.0)) for each in np.cumsum(ran, axis=0).T]
        others = [float(np.interp(at, [first, *ends], [0.0, *each])) for each in taken.T]
        processes = {
            rank.pid: (seconds, 1 << 20)
            for rank, seconds in zip(case.ranks, used, strict=True)
            if rank.pid is not None
        }
        samples.append(
            HostSample(
                at=float(at),
                cores=len(case.ranks),
                processes=processes,
                host="node",
                busy=sum(used) + sum(others),
            )
        )
    return replace(case, host_samples=tuple(samples))
