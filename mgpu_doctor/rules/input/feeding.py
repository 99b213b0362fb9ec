"""How the ranks get their batches, and what whatever makes these does meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from mgpu_probes.inprocess.layout import BATCH_READY, INPUT

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, idle_of
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.steps.phase_shares import after_warm_up, at_epoch_starts
from mgpu_doctor.case import birth, birth_tf
from mgpu_doctor.case.birth import Loader
from mgpu_doctor.case.host import HostSample
from mgpu_doctor.case.model import Rank
from mgpu_doctor.rules.rule import Limit, Limits

ON_DISK = 0.2
"""Share of looks at which it slept uninterruptibly, from which a disk is named: many loaders are in
their page cache else."""

MOSTLY = 0.5
"""Share of the wait that falls on the beginnings of epochs, or on batches that were ready, from
which these are its cause."""

SATURATED = Limit(
    "saturated",
    0.9,
    "fraction",
    "use of the host's cores from which more workers cannot help (vendor rules of Amazon SageMaker "
    "Debugger call a CPU above 90 % a bottleneck).",
)
COMPUTES = Limit(
    "computes",
    0.7,
    "fraction",
    "share of time in which making batches ran on a core or stood ready for one, from which it is "
    "bound by the CPU: well above half.",
)
WAITS = Limit(
    "waits",
    0.5,
    "fraction",
    "share of the wait for data in which whatever makes the batches slept, from which it is bound "
    "by storage, a network or a sleep: half.",
)


DIVIDING = 0.005
"""Seconds a batch: what the iterator of a TensorFlow strategy takes to divide one over a process's
replicas is below it (measured: 1.4 to 1.8 ms over two CPUs, more on a loaded machine), so that a
shorter wait says nothing of the data set."""


class Why(Enum):
    """Why batches come late."""

    WAITS = "waits"
    """Whatever makes them sleeps: storage, a network, a lock."""
    COMPUTES = "computes"
    STARTS = "starts"
    """Its workers are started anew for each epoch."""
    HANDED_OVER = "handed over"
    """They do not: its workers have them ready, and receiving one takes that long."""
    DIVIDED = "divided"
    """They do not: dividing one over the replicas of a process takes that long."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Feeding:
    """How the ranks get their batches; medians over ranks, None: not measured."""

    loader: Loader
    cpu: float | None
    """Use of the host's cores, 0..1."""
    throttled: bool
    """The job's CPU quota is used up now and then."""
    working: float | None
    """Share of time in which a worker ran or stood ready for a core."""
    idle: float | None
    """Without workers: share of the wait for data in which the main thread slept."""
    on_disk: bool
    """Whatever makes the batches is often seen waiting for a disk."""
    first: float | None
    """Seconds that the first batch of an epoch is waited for, where most of the wait is that."""
    why: Why
    ready: float | None
    """With workers: share of the wait for data in steps for which a batch was ready when asked."""

    def busy(self, limits: Limits) -> bool:
        """Whether no core is left for more workers."""
        return self.throttled or (self.cpu is not None and self.cpu >= limits["saturated"])


def feeding(measures: Measures, limits: Limits, only: int | None = None) -> Feeding:
    """Of all ranks, or of one."""
    ranks = [rank for rank in measures.case.ranks if only is None or rank.rank == only]
    around = [measures.surroundings.get(_number(rank), UNSEEN) for rank in ranks]
    loader = next((one for rank in ranks if (one := loader_of(rank)).workers is not None), Loader())
    throttled = _middle(one.throttled for one in around)
    first = _middle(_first_wait(rank) for rank in ranks)
    children = [one.children for one in around if one.children is not None]
    working = idle = on_disk = ready = None
    if loader.workers:
        working = _middle(
            None if one.running is None else one.running + (one.queueing or 0.0) for one in children
        )
        on_disk = _middle(one.on_disk for one in children)
        ready = _middle(_ready_share(rank) for rank in ranks)
    else:
        pairs = zip(ranks, around, strict=True)
        idle = _middle(_idle_share(rank, idle_of(rank, one)) for rank, one in pairs)
        on_disk = _middle(one.on_disk for one in around)
    why = _why(working, idle, ready, limits) if first is None else Why.STARTS
    if why is not Why.STARTS and ranks and all(_only_divides(rank) for rank in ranks):
        why = Why.DIVIDED
    return Feeding(
        loader=loader,
        cpu=cpu_use(measures.case.host_samples),
        throttled=(throttled or 0.0) >= 0.1,
        working=working,
        idle=idle,
        on_disk=(on_disk or 0.0) >= ON_DISK,
        first=first,
        why=why,
        ready=ready,
    )


def loader_of(rank: Rank | None) -> Loader:
    """The first loader, which is the one trained from, that the rank's birth certificate tells
    of."""
    return next(iter(birth.loaders(rank)), Loader())


def cpu_use(samples: tuple[HostSample, ...]) -> float | None:
    """Mean use of the host's cores, 0..1; None: not sampled."""
    known = [one.cpu_percent for one in samples if one.cpu_percent is not None]
    return sum(known) / len(known) / 100 if known else None


def _why(working: float | None, idle: float | None, ready: float | None, limits: Limits) -> Why:
    if ready is not None and ready >= MOSTLY:
        return Why.HANDED_OVER
    if working is not None:
        if working >= limits["computes"]:
            return Why.COMPUTES
        return Why.WAITS if working <= 1 - limits["computes"] else Why.UNKNOWN
    if idle is not None:
        return Why.WAITS if idle >= limits["waits"] else Why.COMPUTES
    return Why.UNKNOWN


def _first_wait(rank: Rank) -> float | None:
    """None where workers stay, or where less than half of the wait is for an epoch to begin."""
    loader = loader_of(rank)
    if not loader.workers or loader.persistent is not False:
        return None
    found = at_epoch_starts(rank, loader.batches)
    return found[1] if found is not None and found[0] >= MOSTLY else None


def _only_divides(rank: Rank) -> bool:
    replicas = birth_tf.replicas(rank)
    return replicas is not None and replicas > 1 and (_wait(rank) or 0.0) < DIVIDING


def _ready_share(rank: Rank) -> float | None:
    steps = after_warm_up(rank.steps)
    seconds = np.nan_to_num(steps["phases"][:, INPUT].astype(float))
    waited = float(seconds.sum())
    return float(seconds[steps["flags"] & BATCH_READY != 0].sum()) / waited if waited > 0 else None


def _idle_share(rank: Rank, idle: float | None) -> float | None:
    waited = _wait(rank)
    return min(1.0, idle / waited) if idle is not None and waited else None


def _wait(rank: Rank) -> float | None:
    """For the batch of a step, seconds, median; None: not measured."""
    seconds = after_warm_up(rank.steps)["phases"][:, INPUT]
    known = seconds[~np.isnan(seconds)]
    return float(np.median(known)) if len(known) else None


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _number(rank: Rank) -> int:
    return -1 if rank.rank is None else rank.rank
