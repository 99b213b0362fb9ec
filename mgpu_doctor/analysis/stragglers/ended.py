"""Stragglers that were and are no more: what a look at the moment of their end would have told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mgpu_doctor.analysis.statistics.medians import BLOCK, row_medians
from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS
from mgpu_doctor.analysis.steps.align import Joined
from mgpu_doctor.analysis.steps.attribution import Attribution
from mgpu_doctor.analysis.steps.cells import Floats, Ints
from mgpu_doctor.analysis.stragglers.rises import CLIP, SHORTEST, TO_NORMAL
from mgpu_doctor.analysis.stragglers.stragglers import Straggler, find_stragglers

ENDS = 3
"""Moments that are looked back to: those at which a rank's excess most clearly ended."""
FELL = 6.0
"""Deviations of the fall that make a look worth while; the look itself then decides."""
DRIFT = 0.75
MARGIN = 6.0
"""The same for cumulative sums: with both, 1,000 steps of 512 healthy ranks make about one look."""
APART = 10
"""Steps between two such moments, at least."""
HALF = 0.5
"""Share of the excess that may be left."""


def find_ended(
    joined: Joined, attribution: Attribution, lasting: Sequence[Straggler]
) -> tuple[Straggler, ...]:
    """Ranks that held the others up for some time and do no longer, in the order of their end;
    `lasting` are those that still do. `saved` and `step_seconds` are of the time until the end."""
    known = {one.rank for one in lasting}
    found = []
    for end in _ends(attribution):
        for one in find_stragglers(joined.between(0, end), attribution.between(0, end)):
            column = joined.ranks.index(one.rank)
            left = float(np.nanmedian(attribution.excess[end:, column]))
            if one.rank not in known and left < HALF * one.excess:
                known.add(one.rank)
                found.append(replace(one, until=int(joined.steps[end - 1])))
    return tuple(found)


def _ends(attribution: Attribution) -> list[int]:
    """Numbers of steps after which some rank's excess most clearly ended; at most `ENDS`."""
    rows = np.flatnonzero(~np.isnan(attribution.typical))
    if len(rows) < LEAST_STEPS + SHORTEST:
        return []
    size = max(1, BLOCK // len(rows))
    ranks = attribution.excess.shape[1]
    found: list[tuple[float, int]] = []
    for start in range(0, ranks, size):
        series = np.array(attribution.excess[rows, start : start + size].T, order="C")
        series -= row_medians(series)[:, None]
        scale = TO_NORMAL * row_medians(np.abs(series))
        clipped = np.clip(series / np.maximum(scale, 1e-9)[:, None], -CLIP, CLIP)
        for clarity, ends in (_falls(clipped), _rises_over(clipped, ranks)):
            clear = np.flatnonzero(clarity >= 1)
            found += zip(clarity[clear].tolist(), ends[clear].tolist(), strict=True)
    chosen: list[int] = []
    for _, end in sorted(found, reverse=True):
        if len(chosen) < ENDS and all(abs(end - other) >= APART for other in chosen):
            chosen.append(end)
    return sorted(int(rows[end - 1]) + 1 for end in chosen)


def _falls(series: Floats) -> tuple[Floats, Ints]:
    """Of (k, T) deviations, k each: the clearest fall from one level to another, as a multiple of
    its limit, and after how many steps. Sees excesses that took most of the time."""
    count = series.shape[1]
    before = np.arange(LEAST_STEPS, count - SHORTEST + 1)
    walk = np.cumsum(series - series.mean(axis=1, keepdims=True), axis=1)[:, before - 1]
    strength = walk / np.sqrt(before * (count - before) / count)
    at = strength.argmax(axis=1)
    return strength[np.arange(len(at)), at] / FELL, before[at]


def _rises_over(series: Floats, ranks: int) -> tuple[Floats, Ints]:
    """The same of the largest cumulative sum beyond `DRIFT` a step (Page 1954), which ends where
    the excess does. Sees short ones in long runs."""
    count = series.shape[1]
    walk = np.cumsum(series - DRIFT, axis=1)
    lowest = np.minimum(np.minimum.accumulate(walk, axis=1), 0)
    reached = (walk - lowest)[:, LEAST_STEPS : count - SHORTEST]
    at = reached.argmax(axis=1)
    needed = math.log(ranks * count) / (2 * DRIFT) + MARGIN
    return reached[np.arange(len(at)), at] / needed, at + LEAST_STEPS + 1
