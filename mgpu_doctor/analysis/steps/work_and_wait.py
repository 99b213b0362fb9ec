"""Who works and who waits: own work, wait and true communication of every rank and step.

Clock-free: in synchronous training all ranks leave a collective at about the same moment, so the
rank that arrived last has the shortest time inside it. What the shortest one spends there is
communication that nobody can avoid; whatever others spend beyond it is waiting. The method is
that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv
2505.05713) without its common clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.statistics.medians import (
    Middle,
    blocks,
    median_of_others,
    middle,
    row_medians,
)
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints

__all__ = [
    "OWN_PHASES",
    "REFERENCE",
    "Attribution",
    "UnattributableError",
    "attribute",
    "median_of_others",
    "phase_excess",
    "reference",
]

OWN_PHASES = tuple(p for p in range(len(PHASES)) if p not in (WAIT, COMMUNICATION))
"""Phases that are a rank's own work, and are compared with the other ranks'."""
REFERENCE = 512
"""In larger fleets so many ranks, evenly spread, stand for the others where a phase is compared:
their median is as good within a twentieth of what one rank's steps vary by."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """Seconds; T steps × R ranks."""

    own: Floats
    """(T, R) everything but standing in collectives; NaN: not measured"""
    standing: Floats
    """(T, R) in collectives, wait and communication together"""
    communication: Floats
    """(T) the least of `standing` over ranks"""
    excess: Floats
    """(T, R) own work beyond the median of the other ranks"""
    typical: Floats
    """(T) own work of the median rank"""
    slowest: Ints
    """(T known) column with the most own work"""
    blame: Floats
    """(T) saved if the slowest alone were like the second slowest"""
    waste: Floats
    """(T) wait of all ranks together"""

    @property
    def steps(self) -> int:
        """Steps in which the own work of every rank is known."""
        return len(self.slowest)

    def between(self, start: int, stop: int) -> Attribution:
        """Some neighbouring steps."""
        known = ~np.isnan(self.typical[:stop])
        first, last = int(known[:start].sum()), int(known.sum())
        return Attribution(
            own=self.own[start:stop],
            standing=self.standing[start:stop],
            communication=self.communication[start:stop],
            excess=self.excess[start:stop],
            typical=self.typical[start:stop],
            slowest=self.slowest[first:last],
            blame=self.blame[start:stop],
            waste=self.waste[start:stop],
        )

    @property
    def blamed(self) -> Floats:
        """(R) seconds a step that are saved if this rank alone never was the slowest."""
        seconds = self.blame[~np.isnan(self.blame)]
        sums = np.bincount(self.slowest, weights=seconds, minlength=self.own.shape[1])
        return np.asarray(sums / max(1, len(self.slowest)))

    @cached_property
    def wait(self) -> Floats:
        """(T, R) `standing` beyond `communication`"""
        return np.asarray(self.standing - self.communication[:, None])

    @cached_property
    def standing_middle(self) -> Middle:
        """How long the others stand in collectives, whoever is left out."""
        return middle(self.standing)


class UnattributableError(ValueError):
    """Own work and wait cannot be told apart; the message says why."""


def attribute(joined: Joined) -> Attribution:
    """Divides every joined step into own work, wait and communication.

    The ranks must not be host-stamped (`case.phase_clock`). Raises `UnattributableError`.
    """
    standing = _standing(joined)
    unmeasured = np.isnan(standing)
    known = ~unmeasured.any(axis=1)
    if np.mean(known) < 0.5:
        unknown = [
            str(rank)
            for rank, share in zip(joined.ranks, unmeasured.mean(axis=0), strict=True)
            if share > 0.5
        ]
        raise UnattributableError(
            f"the wait for other ranks was not measured on rank {', '.join(unknown) or 'all'}"
        )
    np.clip(standing, 0, joined.wall, out=standing)
    standing[~known] = np.nan
    own = joined.wall - standing
    typical, excess, slowest, blame = _compared(own)
    communication = standing.min(axis=1)
    return Attribution(
        own=own,
        standing=standing,
        communication=communication,
        excess=excess,
        typical=typical,
        slowest=slowest[known],
        blame=blame,
        waste=standing.sum(axis=1) - communication * standing.shape[1],
    )


def phase_excess(joined: Joined, phase: int, columns: Ints | None = None) -> Floats:
    """(T, R) seconds of a phase beyond the median of the other ranks, or (T, k) of some columns
    only; NaN: not measured."""
    count = len(joined.ranks)
    if columns is None or count <= REFERENCE:
        values = joined.phases[:, :, phase]
        beyond = values - median_of_others(values)
        return np.asarray(beyond if columns is None else beyond[:, columns])
    usual = row_medians(joined.phases[:, reference(count), phase])
    return np.asarray(joined.phases[:, columns, phase] - usual[:, None])


def reference(ranks: int) -> Ints:
    """Columns that stand for all of so many: all of them, or `REFERENCE` evenly spread ones."""
    return np.linspace(0, ranks - 1, min(ranks, REFERENCE)).astype(np.int64)


def _standing(joined: Joined) -> Floats:
    """(T, R) wait and communication together, where an unmeasured one counts nothing; NaN where
    neither was measured."""
    count, ranks = joined.wall.shape
    standing = np.empty((ranks, count), dtype=np.float32)
    for column in range(ranks):
        wait = joined.cells.phase(WAIT, column)
        if not joined.cells.measured(COMMUNICATION, column):
            standing[column] = wait
            continue
        moving = joined.cells.phase(COMMUNICATION, column)
        both = np.where(np.isnan(moving), wait, wait + moving)
        standing[column] = np.where(np.isnan(wait), moving, both)
    return np.asarray(standing.T)


def _compared(own: Floats) -> tuple[Floats, Floats, Ints, Floats]:
    """The median rank's work (T), excess (T, R), the slowest column (T) and its lead (T)."""
    excess = np.empty_like(own)
    typical, blame = np.empty((2, len(own)), dtype=own.dtype)
    slowest = np.empty(len(own), dtype=np.intp)
    for rows, block in blocks(own):
        centre = middle(block)
        excess[rows] = block - centre.without(block)
        typical[rows] = centre.median
        slowest[rows] = first = block.argmax(axis=1)
        most = np.take_along_axis(block, first[:, None], axis=1)
        np.put_along_axis(block, first[:, None], -np.inf, axis=1)
        blame[rows] = most[:, 0] - block.max(axis=1)
    return typical, excess, slowest, blame
