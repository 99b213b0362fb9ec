"""Whether what holds a rank up now and then is that something else has its cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.machines.cpu_contention import UNSEEN, Surroundings
from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.analysis.stragglers.straggler_causes import DECIDES


@dataclass(frozen=True, slots=True)
class Queued:
    """Shares of the time, 0..1, in which a main thread stood ready without a core."""

    around: Surroundings
    own: float
    others: float
    """Median."""


def queued(measures: Measures, one: Stalls) -> Queued | None:
    """Of the rank that stalls, where it stood so for longer than the others by half of its stalls
    or more; None, too, where several stall by turns or it was not measured."""
    joined = measures.joined
    if joined is None or len(one.ranks) > 1:
        return None
    waits = {rank: measures.surroundings.get(rank, UNSEEN).queueing for rank in joined.ranks}
    own = waits.pop(one.ranks[0], None)
    known = [share for share in waits.values() if share is not None]
    if own is None or not known:
        return None
    others = float(np.median(known))
    lasted = float(np.nansum(joined.wall[:, joined.ranks.index(one.ranks[0])]))
    if (own - others) * lasted < DECIDES * one.total:
        return None
    return Queued(measures.surroundings[one.ranks[0]], own, others)
