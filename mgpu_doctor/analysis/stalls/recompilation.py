"""Compilation (torch.compile) during training: its steps, ranks and duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.case.model import Event, Rank

KIND = "recompile"
CULPRIT = 0.5
"""A rank is named if it compiles for at least this share of the longest-compiling rank's time."""


@dataclass(frozen=True, slots=True)
class Recompilation:
    """Compilations after warm-up, among the steps that are on record."""

    ranks: tuple[int, ...]
    """The ranks that compile, the longest first."""
    steps: int
    """Steps with a compilation, on the rank that has most of them."""
    compared: int
    """Steps on record after warm-up."""
    first: int
    """The first such step."""
    seconds: float
    """Median of what one such step loses."""
    saved: float
    """Share of the time after warm-up, 0..1, in which any rank compiled."""
    what: str
    """`function file:line: reason`, the most frequent; empty: not known."""
    versions: int | None
    """Most often that one function was compiled; None: not known."""


def find_recompilation(ranks: Sequence[Rank], warm_up: int) -> Recompilation | None:
    """The compilations from step `warm_up` on; None if none."""
    late = {rank.rank: _late(rank, warm_up) for rank in ranks if rank.rank is not None}
    late = {number: events for number, events in late.items() if events}
    if not late:
        return None
    wall = max(_wall(rank, warm_up) for rank in ranks)
    if wall <= 0:
        return None
    totals = {number: sum(event.seconds for event in events) for number, events in late.items()}
    most = max(totals.values())
    culprits = [number for number, total in totals.items() if total >= CULPRIT * most]
    by_step = [_by_step(events) for events in late.values()]
    reasons = Counter(
        event.text for events in late.values() for event in events if ":" in event.text
    )
    versions = [event.value for events in late.values() for event in events]
    known = [int(value) for value in versions if np.isfinite(value)]
    return Recompilation(
        ranks=tuple(sorted(culprits, key=lambda number: (-totals[number], number))),
        steps=max(len(steps) for steps in by_step),
        compared=max(_steps(rank, warm_up) for rank in ranks),
        first=min(min(steps) for steps in by_step),
        seconds=float(np.median([lost for steps in by_step for lost in steps.values()])),
        saved=min(1.0, _together(event for events in late.values() for event in events) / wall),
        what=reasons.most_common(1)[0][0] if reasons else "",
        versions=max(known, default=None),
    )


def compiling_seconds(joined: Joined, ranks: Sequence[Rank]) -> Floats:
    """(T, R) seconds in which a rank compiled, of the compilations that are on record."""
    seconds = np.zeros(joined.wall.shape, joined.wall.dtype)  # takes no memory before it is written
    by_number = {rank.rank: rank for rank in ranks}
    for column, number in enumerate(joined.ranks):
        compilations = [event for event in by_number[number].events if event.kind == KIND]
        if not compilations:
            continue
        steps = joined.cells.column("step", column).astype(np.int64)
        for event in compilations:
            row = int(np.searchsorted(steps, event.step))
            if row < len(steps) and steps[row] == event.step:
                seconds[row, column] += event.seconds
    return seconds


def _late(rank: Rank, warm_up: int) -> list[Event]:
    """The compilations in recorded steps."""
    compilations = [event for event in rank.events if event.kind == KIND]
    if not compilations or not len(rank.steps):
        return []
    first, last = max(warm_up, int(rank.steps["step"][0])), int(rank.steps["step"][-1])
    return [event for event in compilations if first <= event.step <= last]


def _wall(rank: Rank, warm_up: int) -> float:
    return float(rank.steps["wall_ns"][rank.steps["step"] >= warm_up].sum()) / 1e9


def _steps(rank: Rank, warm_up: int) -> int:
    return int((rank.steps["step"] >= warm_up).sum())


def _by_step(events: Iterable[Event]) -> dict[int, float]:
    seconds: dict[int, float] = {}
    for event in events:
        seconds[event.step] = seconds.get(event.step, 0.0) + event.seconds
    return seconds


def _together(events: Iterable[Event]) -> float:
    """Seconds in which at least one of them ran: ranks that compile together do not wait."""
    total, until = 0.0, -np.inf
    for event in sorted(events, key=lambda event: event.at):
        end = event.at + event.seconds
        total += max(0.0, end - max(event.at, until))
        until = max(until, end)
    return total
