"""Who works and who waits: own work, wait and true communication of every rank and step.

Clock-free: in synchronous training all ranks leave a collective at about the same moment, so the
rank that arrived last has the shortest time inside it. What the shortest one spends there is
communication that nobody can avoid; whatever others spend beyond it is waiting. The method is
that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv
2505.05713) without its common clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, INPUT, PHASES, WAIT

from mgpu_doctor.analysis.align import Floats, Ints, Joined

OWN_PHASES = tuple(p for p in range(len(PHASES)) if p not in (WAIT, COMMUNICATION))


@dataclass(frozen=True, slots=True)
class Attribution:
    """Seconds; T steps × R ranks."""

    own: Floats
    """(T, R) everything but standing in collectives; NaN: not measured"""
    standing: Floats
    """(T, R) in collectives, wait and communication together"""
    communication: Floats
    """(T) the least of `standing` over ranks"""
    wait: Floats
    """(T, R) `standing` beyond `communication`"""
    excess: Floats
    """(T, R) own work beyond the median of the other ranks"""
    slowest: Ints
    """(T) column with the most own work"""
    least_waiting: Ints
    """(T) column that stood least in collectives"""
    blame: Floats
    """(T) saved if the slowest alone were like the median of the others"""
    waste: Floats
    """(T) wait of all ranks together"""
    judged: tuple[int, ...]
    """Phases that count as own work and can be compared."""

    @property
    def steps(self) -> int:
        """Steps in which the own work of every rank is known."""
        return len(self.slowest)

    @property
    def slowest_share(self) -> Floats:
        """(R) share of steps in which each rank had the most own work."""
        return np.bincount(self.slowest, minlength=self.own.shape[1]) / max(1, len(self.slowest))


class UnattributableError(ValueError):
    """Own work and wait cannot be told apart; the message says why."""


def attribute(joined: Joined, *, host_clock: bool = False) -> Attribution:
    """Divides every joined step into own work, wait and communication.

    Raises `UnattributableError`.

    `host_clock`: the phases were stamped on the host while a device ran asynchronously. Then only
    `input` is surely own work of the host; all else may hide a wait at some later synchronization.
    """
    if host_clock:
        standing = joined.wall - joined.phases[:, :, INPUT]
        judged: tuple[int, ...] = (INPUT,)
    else:
        standing = _measured_sum(joined.phases[:, :, WAIT], joined.phases[:, :, COMMUNICATION])
        judged = OWN_PHASES
    known = ~np.any(np.isnan(standing), axis=1)
    if np.mean(known) < 0.5:
        unknown = [
            str(rank)
            for rank, share in zip(joined.ranks, np.mean(np.isnan(standing), axis=0), strict=True)
            if share > 0.5
        ]
        what = "input" if host_clock else "wait for other ranks"
        raise UnattributableError(
            f"the {what} was not measured on rank {', '.join(unknown) or 'all'}"
        )
    standing = np.where(known[:, None], np.clip(standing, 0, joined.wall), np.nan)
    own = joined.wall - standing
    communication = np.min(standing, axis=1)
    most = np.where(known[:, None], own, 0).argmax(axis=1)
    excess = own - median_of_others(own)
    return Attribution(
        own=own,
        standing=standing,
        communication=communication,
        wait=standing - communication[:, None],
        excess=excess,
        slowest=most[known],
        least_waiting=np.where(known[:, None], standing, 0).argmin(axis=1)[known],
        blame=own.max(axis=1) - np.partition(own, -2, axis=1)[:, -2],
        waste=(standing - communication[:, None]).sum(axis=1),
        judged=judged,
    )


def phase_excess(joined: Joined, phase: int) -> Floats:
    """(T, R) seconds of a phase beyond the median of the other ranks; NaN: not measured."""
    values = joined.phases[:, :, phase]
    return values - median_of_others(values)


def median_of_others(values: Floats) -> Floats:
    """(T, R) the median of each row without the element itself; NaN elements are left out, and a
    row with no other element gives NaN."""
    count = np.sum(~np.isnan(values), axis=1, keepdims=True)
    order = np.argsort(values, axis=1)  # NaN sort last
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(
        place, order, np.broadcast_to(np.arange(values.shape[1]), order.shape).copy(), axis=1
    )
    others = count - (place < count)
    low, high = (others - 1) // 2, others // 2
    last = values.shape[1] - 1

    def without_self(index: npt.NDArray[np.intp]) -> Floats:
        shifted = np.clip(index + (index >= place), 0, last)
        return np.take_along_axis(ordered, shifted, axis=1)

    middle = (without_self(low) + without_self(high)) / 2
    return np.where(others > 0, middle, np.nan)


def _measured_sum(first: Floats, second: Floats) -> Floats:
    """Their sum, where an unmeasured one counts nothing; NaN where neither was measured."""
    neither = np.isnan(first) & np.isnan(second)
    return np.where(neither, np.nan, np.nan_to_num(first) + np.nan_to_num(second))
