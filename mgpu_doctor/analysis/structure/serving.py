"""Parameter servers: ranks that update weights with the gradients of others, and have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mgpu_probes.inprocess.layout import NO_OPTIMIZER

from mgpu_doctor.case import birth
from mgpu_doctor.case.model import Rank

_NEWEST = 128
"""Steps of each rank that are looked at."""


def servers(ranks: Sequence[Rank]) -> frozenset[int]:
    """The ranks that only serve: they update in most of their steps, never run backward, and
    exchange messages with ranks that do."""
    if any(birth.pipeline(one) is not None for one in ranks):
        return frozenset()  # a schedule without bubbles runs no backward pass that counts as one
    idle = [one for one in ranks if one.rank is not None and _only_updates(one)]
    if not idle:
        return frozenset()
    workers = [one for one in ranks if len(one.steps) and backward_passes(one) >= 1]
    numbers = {one.rank for one in workers}
    asked = {other for one in workers for other in birth.sends_to(one)}
    return frozenset(
        one.rank
        for one in idle
        if one.rank is not None
        and (one.rank in asked or not numbers.isdisjoint(birth.sends_to(one)))
    )


def without(ranks: Sequence[Rank], serving: frozenset[int]) -> tuple[Rank, ...]:
    """The ranks that do not serve."""
    return tuple(one for one in ranks if one.rank not in serving)


def backward_passes(one: Rank) -> float:
    """Of a step, the median."""
    return float(np.median(one.steps["micro_batches"]))


def _only_updates(one: Rank) -> bool:
    newest = one.steps[-_NEWEST:]
    if not len(newest) or newest["micro_batches"].any():
        return False
    return bool(np.median(newest["flags"] & NO_OPTIMIZER) == 0)
