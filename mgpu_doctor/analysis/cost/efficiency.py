"""How well the ranks work together, from one run alone: POP's parallel efficiency.

Parallel efficiency is the mean time that ranks do useful work, as a share of the run time. It is
the product of the load balance (mean / most useful time of a rank) and the communication
efficiency (most useful time of a rank / run time), each 0..1: the standard metrics of the POP
Centre of Excellence (https://co-design.pop-coe.eu/metrics). Useful is here the own work of
`attribution`: all but standing in collectives, so that waiting for data counts as work. No common
clock is needed.

How fast more ranks would make the job, one run cannot tell; `compare` sets runs side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.work_and_wait import Attribution


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares 0..1 of the ranks that were compared."""

    load_balance: float
    """Lowered by ranks that have more work than others all the time."""
    communication: float
    """Lowered by data that moves, and by work that is uneven now here, now there."""

    @property
    def parallel(self) -> float:
        """Share of the ranks' time that they work."""
        return self.load_balance * self.communication


def efficiency(attribution: Attribution) -> Efficiency | str:
    """Of the steps in which every rank's own work is known; else a sentence why it is not told."""
    known = ~np.isnan(attribution.typical)[:, None]
    work = attribution.own.sum(axis=0, where=known, dtype=np.float64)
    standing = attribution.standing.sum(axis=0, where=known, dtype=np.float64)
    run_time, most = float((work + standing).max()), float(work.max())
    if most <= 0:
        return "no rank did any work of its own in the steps compared"
    return Efficiency(load_balance=float(work.mean()) / most, communication=most / run_time)
