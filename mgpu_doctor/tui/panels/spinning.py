"""How much of a GPU's utilization is waiting: a kernel that spins in a collective counts as busy.

It is known of two kinds of ranks: those that have stood in one collective for seconds, and those
whose phases were timed on the device. What a host clock says of a device does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.gpu import Which
from mgpu_doctor.tui.filter.shown import gpus, pids

if TYPE_CHECKING:
    from mgpu_doctor.case.model import Now, Rank
    from mgpu_doctor.findings import RankSummary

STANDS = 5.0
"""Seconds in one collective from which all that the device does is waiting."""
LEAST = 0.1
"""Share of a step below which waiting is not worth a mark."""
WAITS = ("waiting", "hung")
"""States of a rank."""


def waiting(frame: Frame, ranks_on: Mapping[Which, Sequence[RankSummary]]) -> dict[Which, float]:
    """GPU -> share, 0..1, of the time that its ranks wait for others, where that is
    known of all that runs there. `ranks_on`: who computes there."""
    if frame.diagnosis is None:
        return {}
    facts = {(rank.rank, rank.pid): rank for rank in frame.diagnosis.case.ranks}
    found = {}
    for gpu in gpus(frame):
        ranks = ranks_on.get(gpu.which, ())
        if not ranks or len(pids(gpu.device)) > len(ranks):
            continue  # somebody else may be at work on it
        shares = [_share(one, facts.get((one.rank, one.pid)), frame.at) for one in ranks]
        known = [share for share in shares if share is not None]
        if len(known) == len(ranks) and min(known) >= LEAST:
            found[gpu.which] = min(known)
    return found


def _share(told: RankSummary, rank: Rank | None, at: float) -> float | None:
    if rank is None:
        return None
    if told.state in WAITS and _stands(rank.now, at):
        return 1.0
    if rank.birth.get("clock") != "device":
        return None
    from mgpu_doctor.report import phases  # not for a machine without a job

    spent = phases.known(told.phases)
    total = sum(spent.values())
    return spent.get("wait", 0.0) / total if total else None


def _stands(now: Now | None, at: float) -> bool:
    return now is not None and now.phase == "wait" and at - now.since >= STANDS
