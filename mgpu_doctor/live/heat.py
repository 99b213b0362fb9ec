"""What the last steps were like: the heat-map's numbers and the step rate. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mgpu_doctor.analysis.align import UnjoinableError, join
from mgpu_doctor.analysis.attribution import UnattributableError, attribute
from mgpu_doctor.analysis.measures import has_host_clock
from mgpu_doctor.case.model import Case, Rank

RECENT = 240
"""Steps looked at: about what the widest usual screen can show, one a column."""
RATE_STEPS = 20
SPARE = 24
"""Records more a rank, since ranks are caught at slightly different steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """`excess[r, t]`: own work of rank `ranks[r]` in step `steps[t]` beyond the median of all
    ranks, as a share of that median; NaN: not measured."""

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    excess: npt.NDArray[np.float64]


def heat(case: Case) -> Heat | str:
    """The map, or a sentence why there is none."""
    recent = tuple(_newest(rank) for rank in case.ranks)
    try:
        joined = join(recent)
        own = attribute(joined, host_clock=has_host_clock(recent)).own
    except (UnjoinableError, UnattributableError) as reason:
        return str(reason)
    typical = np.median(own, axis=1, keepdims=True)
    excess = np.divide(
        own - typical, typical, out=np.full_like(own, np.nan), where=np.nan_to_num(typical) > 0
    )
    return Heat(joined.ranks, joined.steps[-RECENT:], excess.T[:, -RECENT:])


def _newest(rank: Rank) -> Rank:
    return replace(rank, steps=rank.steps[-(RECENT + SPARE) :])


def step_rate(ranks: Sequence[Rank]) -> float | None:
    """Steps a second over the newest records of the rank that is furthest; None: no step yet."""
    furthest = max(
        (rank for rank in ranks if len(rank.steps)),
        key=lambda rank: int(rank.steps["step"][-1]),
        default=None,
    )
    if furthest is None:
        return None
    newest = furthest.steps["wall_ns"][-RATE_STEPS:]
    seconds = float(newest.sum()) * 1e-9
    return len(newest) / seconds if seconds > 0 else None
