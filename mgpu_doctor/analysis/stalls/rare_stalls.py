"""Stalls too rare to occur three times in the step records, found in the whole run's history.

A checkpoint every ten thousand steps, or an evaluation at the end of long epochs, may still cost a
tenth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mgpu_probes.inprocess.layout import WARM_UP

from mgpu_doctor.analysis.statistics.significance import Period, period
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.case.model import Rank

LONGER = 1.5
"""The history must cover this many times the steps that the records hold."""
RECURS = 3
"""Windows of time in which a rank did it."""
OUTLIER = 4.0
"""The third longest window is the reference: longer ones count at most 4 times as much."""


@dataclass(frozen=True, slots=True)
class RareStalls:
    ranks: tuple[int, ...]
    """Ranks with a history, in ascending order."""
    totals: Floats
    """(R) seconds of the whole run"""
    wall: float
    """Seconds of the whole run, mean of the ranks."""
    steps: int
    count: int
    """Number of stalls of the rank with the largest total."""
    seconds: float
    """Median length of one."""
    steps_seen: tuple[int, ...]
    """Steps of the stalls whose events are still on record."""
    period: Period | None

    def is_beyond(self, compared: int) -> bool:
        """Whether the run has many more steps than those compared."""
        return self.steps >= LONGER * compared


def find_rare_stalls(ranks: Sequence[Rank], phase: int, event: str) -> RareStalls | None:
    """What ranks did in a phase in the whole run; None if it does not recur, and if a rank has no
    history or no number."""
    known = [rank for rank in ranks if rank.rank is not None and len(rank.history)]
    if len(known) < len(ranks) or not known:
        return None
    if not any((rank.history["phases"][:, phase] > 0).any() for rank in known):
        return None  # as mostly
    windows = [rank.history[(rank.history["flags"] & WARM_UP) == 0] for rank in known]
    seconds = [np.nan_to_num(window["phases"][:, phase].astype(float)) for window in windows]
    if min(len(second) for second in seconds) < RECURS:
        return None
    typical = max(float(np.partition(second, -RECURS)[-RECURS]) for second in seconds)
    if typical <= 0:
        return None
    totals = np.array([np.minimum(second, OUTLIER * typical).sum() for second in seconds])
    most = int(totals.argmax())
    events = [candidate for candidate in known[most].events if candidate.kind == event]
    lengths = [event.seconds for event in events] or seconds[most][seconds[most] > 0].tolist()
    seen = np.array([event.step for event in events], dtype=np.int64)
    return RareStalls(
        ranks=tuple(rank.rank for rank in known if rank.rank is not None),
        totals=totals,
        wall=float(np.mean([window["wall_ns"].sum() for window in windows])) * 1e-9,
        steps=min(int(window["micro_batches"].sum()) for window in windows),
        count=max(len(events), int((seconds[most] > 0).sum())),
        seconds=float(np.median(lengths)),
        steps_seen=tuple(seen.tolist()),
        period=period(seen),
    )
