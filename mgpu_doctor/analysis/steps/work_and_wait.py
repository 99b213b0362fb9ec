"""Own work, wait and true communication of every rank and step.

Clock-free: in synchronous training all ranks leave a collective at about the same moment, so the
rank that arrived last has the shortest time inside it. What the shortest one spends there is
unavoidable communication; the time that others spend beyond it is waiting. The method
follows "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv
2505.05713) without its common clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT
from mgpu_probes.inprocess.training_objects import UnseenWaits

from mgpu_doctor.analysis.statistics.medians import (
    Middle,
    blocks,
    column_blocks,
    median_of_others,
    middle,
    row_medians,
)
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.second_process import call_all

__all__ = [
    "OWN_PHASES",
    "REFERENCE",
    "Attribution",
    "UnattributableError",
    "attribute",
    "explain_unseen_waits",
    "median_of_others",
    "phase_excess",
    "reference",
]

OWN_PHASES = tuple(p for p in range(len(PHASES)) if p not in (WAIT, COMMUNICATION))
"""Phases that are a rank's own work, and are compared with the other ranks'."""
REFERENCE = 512
"""In larger jobs, this many evenly spread ranks represent the others when a phase is compared. The
error of their median is within 5 % of the step-to-step variation of one rank."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """Seconds; T steps × R ranks. What follows from the fields is computed when it is asked for: a
    large job's cells take 40 MB a time."""

    wall: Floats
    """(T, R)"""
    own: Floats
    """(T, R) everything but time in collectives; NaN: not measured"""
    communication: Floats
    """(T) the least of `in_collectives` over ranks"""
    others: Middle
    """Own work of the median of the other ranks, for each rank that is left out"""

    @cached_property
    def steps(self) -> int:
        """Number of steps in which the own work of every rank is known."""
        return int(np.count_nonzero(~np.isnan(self.typical)))

    def between(self, start: int, stop: int) -> Attribution:
        """The steps from index `start` up to `stop`."""
        return Attribution(
            wall=self.wall[start:stop],
            own=self.own[start:stop],
            communication=self.communication[start:stop],
            others=self.others.between(start, stop),
        )

    def newest(self, steps: int) -> Attribution:
        """The newest steps, at most so many."""
        return self.between(max(0, len(self.own) - steps), len(self.own))

    @property
    def typical(self) -> Floats:
        """(T) own work of the median rank"""
        return self.others.median

    @property
    def in_collectives(self) -> Floats:
        """(T, R) time in collectives: waiting for other ranks and communication together"""
        return self.in_collectives_of(slice(None))

    def in_collectives_of(self, columns: Ints | slice) -> Floats:
        """(T, k) the time in collectives of some ranks."""
        return np.asarray(self.wall[:, columns] - self.own[:, columns])

    @property
    def wait(self) -> Floats:
        """(T, R) `in_collectives` beyond `communication`"""
        return self.wait_of(slice(None))

    def wait_of(self, columns: Ints | slice) -> Floats:
        """(T, k) the wait of some ranks."""
        waited = self.in_collectives_of(columns)
        waited -= self.communication[:, None]
        return waited

    def by_column(self, measure: Callable[[slice], Floats]) -> Floats:
        """(R) a measure of each column, computed for a few of them at a time: all cells of a large
        job would take as much memory as `own` does."""
        calls = [partial(measure, columns) for columns in column_blocks(self.own)]
        return np.concatenate(call_all(calls, self.own.size))

    @property
    def excess(self) -> Floats:
        """(T, R) own work beyond the median of the other ranks"""
        return self.excess_of(slice(None))

    def excess_of(self, columns: Ints | slice) -> Floats:
        """(T, k) the excess of some ranks."""
        excess: Floats = self.own[:, columns].copy(order="F")
        for rows, own in blocks(excess):
            start, stop, _ = rows.indices(len(excess))
            excess[rows] -= self.others.between(start, stop).without(own)
        return excess

    @cached_property
    def in_collectives_middle(self) -> Middle:
        """Median time of the other ranks in collectives, for each rank that is left out."""
        return middle(self.wall, less=self.own)


class UnattributableError(ValueError):
    """Own work and waiting cannot be separated; the message says why."""


UNSEEN_WAITS = {
    UnseenWaits.COMPILED_CODE: "code that torch.compile generated in C++ reduces over ranks",
    UnseenWaits.CUDA_GRAPH: "a CUDA graph holds collectives",
    UnseenWaits.SYMMETRIC_MEMORY: "kernels read the memory of other ranks (symmetric memory)",
    UnseenWaits.UNMARKED: "no step of the loop holds a collective or a marked wait",
}
"""Why a wait could not be measured, as a clause."""
MARK_WAITS = (
    "if the ranks wait for each other, mark each call that waits: "
    '`with mgpu_doctor.phase("wait"):` (docs/python.md)'
)


def explain_unseen_waits(ranks: Sequence[Rank]) -> tuple[str, str]:
    """Why these ranks' waits were not measured, as the end of a sentence, and the remedy; empty:
    unknown."""
    unseen = {where for rank in ranks if (where := rank.metadata.unseen_waits) is not None}
    reasons = "; ".join(sorted(UNSEEN_WAITS[where] for where in unseen))
    return f": {reasons}" if reasons else "", MARK_WAITS if unseen == {UnseenWaits.UNMARKED} else ""


def attribute(joined: Joined) -> Attribution:
    """Divides every joined step into own work, wait and communication.

    The ranks must not be host-stamped (`case.phase_clock`). Raises `UnattributableError`.
    """
    in_collectives = _in_collectives(joined)
    unmeasured = np.isnan(in_collectives)
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
    np.clip(in_collectives, 0, joined.wall, out=in_collectives)
    in_collectives[~known] = np.nan
    own = np.subtract(joined.wall, in_collectives, out=in_collectives)
    least = [
        (joined.wall[:, columns] - own[:, columns]).min(axis=1) for columns in column_blocks(own)
    ]
    communication = np.min(least, axis=0)  # the last rank's wait is then exactly 0
    return Attribution(joined.wall, own, communication, others=middle(own))


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
    """Columns that represent all: every column, or `REFERENCE` evenly spread ones."""
    return np.linspace(0, ranks - 1, min(ranks, REFERENCE)).astype(np.int64)


def _in_collectives(joined: Joined) -> Floats:
    """(T, R) wait plus communication. If only one was measured, the other counts as 0; NaN if
    neither was."""
    count, ranks = joined.wall.shape
    in_collectives = np.empty((ranks, count), dtype=np.float32)
    for chunk in joined.cells.chunks:
        wait = chunk[WAIT]
        if not chunk.measured(COMMUNICATION):
            in_collectives[chunk.places] = wait
            continue
        moving = chunk[COMMUNICATION]
        both = np.where(np.isnan(moving), wait, wait + moving)
        in_collectives[chunk.places] = np.where(np.isnan(wait), moving, both)
    return np.asarray(in_collectives.T)
