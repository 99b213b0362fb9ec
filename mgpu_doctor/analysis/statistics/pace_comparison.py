"""Finds the slowest of several ranks, workers or replicas that do the same work, by quartiles of
their newest times. Pure.

Used where they do not wait for each other, so that own work need not be separated from waiting:
parameter-server workers and TensorFlow's replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import median

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, WAIT

from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.device_times import on_one_clock
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import Pace
from mgpu_doctor.recording.columns import phase_of

LEAST = 30
"""Times that each must have: quartiles of fewer say little. A choice."""
EXCESS = 0.25
"""Share by which the slowest must exceed the median of the others. Healthy workers and replicas
that share cores differed by less."""
TOGETHER = 1.0
"""The same for replicas that share the cores of one process. TensorFlow starts them one after the
other: of two healthy ones on two cores, the second had its gradients up to 0.4 later."""
SURE = 5.0
"""Standard errors by which the slowest must exceed the second slowest. More than independent times
would need, because successive times are correlated. Simulated: of healthy workers whose times vary
by 40 %, are correlated by 0.7 and differ permanently by up to 10 %, one job in a hundred is
reported."""
NEWEST = 256
"""Newest steps of a rank that its quartiles cover."""
_PER_QUARTILES = 0.93
"""Standard error of a median, as a multiple of the interquartile range over the root of the count:
1.2533 / 1.349, for a normal distribution."""


@dataclass(frozen=True, slots=True)
class SlowPace:
    """The slowest of several, by its `index`; times in seconds."""

    index: int
    middle: float
    """Its median."""
    of_others: float
    """Median of the others' medians."""
    times: int
    """How many of its times were compared."""
    others: tuple[int, ...]
    """Indexes of the others."""

    @property
    def excess(self) -> float:
        return self.middle - self.of_others


def measure_paces(ranks: Sequence[Rank]) -> tuple[Pace, ...]:
    """The pace of each rank: quartiles of its newest steps without waiting (for a server) and
    communication. Only for ranks that do not wait for each other. Ranks without steps are left
    out."""
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
    """The slowest, if it exceeds the others' median by the share `excess` and the second slowest
    significantly; None: there is none, or too little is known."""
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
    """Share, 0..1, of the time for the same work that would be saved if the slow one were as fast
    as the others. Each works independently, so rates add up."""
    rates = {pace.index: 1 / pace.middle for pace in paces if pace.middle > 0}
    now = sum(rates.values())
    fixed = now - rates[slow.index] + 1 / slow.of_others
    return 1 - now / fixed


def _error(pace: Pace) -> float:
    return _PER_QUARTILES * (pace.high - pace.low) / sqrt(pace.newest)
