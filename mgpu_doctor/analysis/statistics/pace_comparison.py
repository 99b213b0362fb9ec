"""Which of several is slower at the same work, by quartiles of their newest times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, WAIT

from mgpu_doctor.analysis.steps.phase_shares import after_warm_up
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import Pace
from mgpu_doctor.recording.columns import phase_of

LEAST = 30
"""Times of each, below which quartiles say little."""
EXCESS = 0.25
"""Beyond the median of the others: of workers and replicas that share cores, healthy ones differed
by less."""
TOGETHER = 1.0
"""The same for replicas that share the cores of one process: TensorFlow starts them one after the
other, and of two healthy ones on two cores the second had its gradients up to 0.4 later."""
SURE = 5.0
"""Standard errors. Successive times are correlated, so this is more than independent ones
would need: of healthy workers whose times vary by 40 %, follow each other with a correlation of 0.7
and differ by up to 10 % for good, one job in a hundred is reported (simulated)."""
NEWEST = 256
"""Newest steps of a rank in its quartiles."""
_PER_QUARTILES = 0.93
"""Standard error of a median, as a multiple of the interquartile range over the root of the number:
1.2533 / 1.349, of a normal distribution."""


@dataclass(frozen=True, slots=True)
class SlowPace:
    """The slowest of several; seconds."""

    index: int
    middle: float
    of_others: float
    """Median of the others' medians."""
    times: int
    others: tuple[int, ...]

    @property
    def excess(self) -> float:
        return self.middle - self.of_others


def measure_paces(ranks: Sequence[Rank]) -> tuple[Pace, ...]:
    """Of ranks that do not wait for each other: what is left of their newest steps without waiting
    (for a server) and moving data. Ranks for which that is unknown are left out."""
    paces = []
    for rank in ranks:
        steps = after_warm_up(on_one_clock(rank).steps)[-NEWEST:]
        if rank.rank is None or not len(steps):
            continue
        idle = np.nan_to_num(phase_of(steps, WAIT)) + np.nan_to_num(phase_of(steps, COMMUNICATION))
        low, middle, high = np.quantile(steps["wall_ns"] * 1e-9 - idle, (0.25, 0.5, 0.75))
        pace = Pace(
            rank.rank, len(rank.steps), len(steps), (float(low), float(middle), float(high))
        )
        paces.append(pace)
    return tuple(paces)


def find_slow_pace(paces: Sequence[Pace], excess: float = EXCESS) -> SlowPace | None:
    """The one that is slower than all others, by the part `excess` at least, and surely so; None:
    there is none, or too little is known."""
    known = [pace for pace in paces if pace.newest >= LEAST]
    if len(known) < 2:
        return None
    *others, slowest = sorted(known, key=lambda pace: pace.middle)
    usual = median(other.middle for other in others)
    nearest = others[-1]
    beyond = slowest.middle - nearest.middle
    error = sqrt(_error(slowest) ** 2 + _error(nearest) ** 2)
    surely = beyond / error if error else inf
    if usual <= 0 or slowest.middle < (1 + excess) * usual or surely < SURE:
        return None
    return SlowPace(
        slowest.index,
        slowest.middle,
        usual,
        slowest.newest,
        tuple(sorted(other.index for other in others)),
    )


def throughput_lost(paces: Sequence[Pace], slow: SlowPace) -> float:
    """Share of the time for the same work, 0..1, that is saved if the slow one were as fast as the
    others and each goes on by itself."""
    rates = {pace.index: 1 / pace.middle for pace in paces if pace.middle > 0}
    now = sum(rates.values())
    fixed = now - rates[slow.index] + 1 / slow.of_others
    return 1 - now / fixed


def _error(pace: Pace) -> float:
    return _PER_QUARTILES * (pace.high - pace.low) / sqrt(pace.newest)
