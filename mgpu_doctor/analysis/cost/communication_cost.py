"""The cost of communication apart from waiting: the time in which data moves. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import Surroundings
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, estimate
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import PhaseClock

CROWDED = 0.5
"""Threads besides the main one that waited for a core for this share of the time that
communication takes explain it: it is they who move data."""


@dataclass(frozen=True, slots=True)
class Moving:
    """Exposed communication, with the wait for other ranks taken out."""

    seconds: float
    """A step, mean without the tenth of the steps at either end."""
    share: float
    """Share of the step time, 0..1."""


def moving(joined: Joined, attribution: Attribution) -> Moving | None:
    """Time in collectives of the rank that arrived last; None: too few steps."""
    series = attribution.communication[~np.isnan(attribution.communication)]
    if len(series) < LEAST_STEPS:
        return None
    seconds = max(0.0, estimate(series.astype(np.float64)).mean)
    return Moving(seconds, min(1.0, seconds / joined.step_seconds))


@dataclass(frozen=True, slots=True)
class CoreContention:
    """Whether the cores that compute are also short of time to move data."""

    crowded: bool
    ranks: int
    """On the fullest host."""
    cores: int | None
    """Cores that these may use."""
    queueing: float | None = None
    """Seconds per second in which the mean rank's threads besides the main one were ready and no
    core was free; None: not measured, so ranks and cores were counted; or these compute, too."""
    outside: float | None = None
    """Cores that were busy with other things than this job."""
    moving: float | None = None
    """CPU seconds a second of the mean rank's threads beside the main one, where none of them
    computes."""
    filled: bool = False
    """Ranks fill the cores, and what these threads ran and queued explains communication: a core
    moved the data that a main thread wanted."""

    @property
    def short(self) -> bool:
        """Whether cores rather than a link are what communication waits for."""
        return self.crowded or self.filled or self.ranks > (self.cores or self.ranks)


def _on_host(rank: Rank) -> bool:
    """Whether the CPU transfers the rank's data: it computes on the CPU, or it uses gloo without a
    device. (A loop without a backward pass does not show where it computes.)"""
    gloo = rank.metadata.backend == "gloo" and rank.metadata.device in (None, "cpu")
    return rank.metadata.clock is PhaseClock.CPU or gloo


def measure_core_contention(
    ranks: Sequence[Rank], around: Mapping[int, Surroundings], share: float
) -> CoreContention | None:
    """None where no rank's collectives are the CPU's work. `share`, 0..1, is what communication
    takes of the step."""
    if not ranks or not all(_on_host(rank) for rank in ranks):
        return None
    ((fullest, _),) = Counter(rank.host for rank in ranks).most_common(1)
    there = [rank for rank in ranks if rank.host == fullest]
    known = [many for rank in there if isinstance(many := rank.metadata.affinity, int)]
    cores = max(known, default=None)
    queued = [
        max(0.0, surroundings.all_queueing - (surroundings.queueing or 0.0))
        for surroundings in around.values()
        if surroundings.all_queueing is not None
    ]
    if not queued:
        return CoreContention(cores is None or len(there) >= cores, len(there), cores)
    mean = float(np.mean(queued))
    moved = _moved_by_others(ranks, around)
    full = cores is not None and len(there) >= cores
    outside = [
        surroundings.outside for surroundings in around.values() if surroundings.outside is not None
    ]
    return CoreContention(
        mean >= CROWDED * share,
        len(there),
        cores,
        None if _pooled(around) else mean,
        max(outside) if outside else None,
        moved,
        full and mean + (moved or 0.0) >= CROWDED * share,
    )


def _moved_by_others(ranks: Sequence[Rank], around: Mapping[int, Surroundings]) -> float | None:
    if any(rank.metadata.threads != 1 for rank in ranks) or _pooled(around):
        return None
    used = [
        max(0.0, surroundings.running - surroundings.main_running)
        for surroundings in around.values()
        if surroundings.running is not None and surroundings.main_running is not None
    ]
    return float(np.mean(used)) if used else None


def _pooled(around: Mapping[int, Surroundings]) -> bool:
    return any(surroundings.pooled for surroundings in around.values())
