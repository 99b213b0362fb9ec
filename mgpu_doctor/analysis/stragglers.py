"""Which ranks hold the others up, persistently, and in which phase.

A rank is named only if all of this agrees: its own work exceeds that of the others significantly
(in sum or in one phase), no other rank's sum exceeds more, and the others stand in collectives
longer than it does by a comparable time. Otherwise nobody is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.align import Floats, Joined
from mgpu_doctor.analysis.attribution import Attribution, median_of_others, phase_excess
from mgpu_doctor.analysis.significance import LEAST_STEPS, Persistent, persistent
from mgpu_doctor.analysis.whatif import saved_fraction, step_time

FLOOR = 0.02
"""Least excess as a share of the step (Greyhound, arXiv 2410.12588, has 10 %)."""
COMPARABLE = 0.5
"""The others must wait longer than the culprit by this share of its excess, at least; and the sum
of its phases must show this share of what one phase shows."""
ALIKE = 0.5
"""A second culprit has at least this share of the first one's excess."""
FLOOR_OF_TWO = 0.03
"""The same where there are two ranks, as nothing tells how much healthy ones differ."""
ASYMMETRY = 1.5
FEW = 2.0
"""Healthy ranks differ a little for good (rank 0 logs, cores are shared): a culprit exceeds the
others by 1.5 + 2/n times the difference that the most of those n keep; few show less of it."""
MOST = 0.95


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that holds the others up. Seconds are per step, medians or trimmed means."""

    rank: int
    excess: float
    """Own work beyond the median of the other ranks."""
    by_phase: Mapping[str, float | None]
    """The same, phase by phase; None: not measured."""
    own: float
    own_of_others: float
    standing: float
    """In collectives, the culprit; then the others."""
    standing_of_others: float
    positive: float
    """Share of steps in which it worked longer than the median of the others."""
    slowest_share: float
    certainty: float
    since: int | None
    """Step at which it began; None: from the start."""
    steps: int
    """Steps compared since then."""
    saved: float
    """Share of the step time, 0..1, that mending it saves, those with more excess mended first."""
    step_seconds: float
    """Mean step time since then."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    column: int
    found: Persistent
    excess: float


def find_stragglers(joined: Joined, attribution: Attribution) -> tuple[Straggler, ...]:
    """The persistent stragglers, the worst first; empty where the evidence does not decide."""
    if attribution.steps < LEAST_STEPS:
        return ()
    suspects = _suspects(joined, attribution)
    if not suspects:
        return ()
    start = suspects[0].found.onset
    gaps = np.nanmedian(attribution.excess[start:], axis=0)
    culprits = [
        one
        for one in suspects
        if one.excess >= ALIKE * suspects[0].excess and _is_waited_for(attribution, one)
    ]
    if (
        not culprits
        or len(culprits) * 2 > len(joined.ranks)
        or gaps.argmax() != culprits[0].column
        or not _stand_out(attribution, culprits)
    ):
        return ()
    described = []
    mended: dict[int, float] = {}
    before = 0.0
    for one in culprits:
        mended[one.column] = one.excess
        after = saved_fraction(attribution, mended, start=start)
        described.append(_describe(joined, attribution, one, after - before))
        before = after
    return tuple(described)


def _suspects(joined: Joined, attribution: Attribution) -> list[_Suspect]:
    """Columns with a persistent excess in sum or in a phase, the largest sum first."""
    step = float(np.median(joined.wall))
    floor = step * (FLOOR if len(joined.ranks) > 2 else FLOOR_OF_TWO)
    likely = np.flatnonzero(_late_medians(attribution.excess) >= COMPARABLE * floor)
    comparisons = len(joined.ranks) * (1 + len(attribution.judged))
    series = [attribution.excess]
    if len(attribution.judged) > 1 and len(likely):
        series += [phase_excess(joined, phase) for phase in attribution.judged]
    suspects = []
    for column in likely:
        found = [
            one
            for values in series
            if (one := _persistent(values[:, column], comparisons, floor)) is not None
        ]
        if not found:
            continue
        surest = max(found, key=lambda one: (one.effect * one.positive, one.certainty))
        excess = float(np.nanmedian(attribution.excess[surest.onset :, column]))
        if excess >= max(COMPARABLE * surest.effect, FLOOR * step):
            suspects.append(_Suspect(int(column), surest, excess))
    return sorted(suspects, key=lambda one: -one.excess)


def _late_medians(excess: Floats) -> Floats:
    """(R) the larger of the medians over all steps and over the newest ones."""
    return np.maximum(
        np.nanmedian(excess, axis=0), np.nanmedian(excess[-2 * LEAST_STEPS :], axis=0)
    )


def _persistent(values: Floats, comparisons: int, floor: float) -> Persistent | None:
    known = ~np.isnan(values)
    if known.all():
        return persistent(values, comparisons=comparisons, floor=floor)
    if known.sum() < max(LEAST_STEPS, len(values) / 2):
        return None
    found = persistent(values[known], comparisons=comparisons, floor=floor)
    if found is None:
        return None
    onset = int(np.flatnonzero(known)[found.onset]) if found.onset else 0
    return Persistent(found.effect, found.certainty, found.positive, onset)


def _is_waited_for(attribution: Attribution, one: _Suspect) -> bool:
    """Whether the others stand in collectives longer than the suspect, by a comparable time."""
    standing = attribution.standing[one.found.onset :]
    longer = np.nanmedian(median_of_others(standing) - standing, axis=0)[one.column]
    return bool(longer >= COMPARABLE * one.excess)


def _stand_out(attribution: Attribution, culprits: list[_Suspect]) -> bool:
    """Whether the least culprit exceeds the rest by more than those differ among themselves."""
    rest = np.delete(attribution.own, [one.column for one in culprits], axis=1)
    if rest.shape[1] < 2:
        return True
    levels = np.nanmedian(rest[culprits[0].found.onset :], axis=0)
    usual = float(np.quantile(levels, MOST) - np.median(levels))
    needed = (ASYMMETRY + FEW / rest.shape[1]) * usual
    return all(one.excess >= needed for one in culprits)


def _describe(joined: Joined, attribution: Attribution, one: _Suspect, saved: float) -> Straggler:
    start, column = one.found.onset, one.column
    own, standing = attribution.own[start:], attribution.standing[start:]
    by_phase: dict[str, float | None] = {}
    for phase in attribution.judged:
        values = phase_excess(joined, phase)[start:, column]
        by_phase[PHASES[phase]] = None if np.isnan(values).all() else float(np.nanmedian(values))
    return Straggler(
        rank=joined.ranks[column],
        excess=one.excess,
        by_phase=by_phase,
        own=float(np.nanmedian(own[:, column])),
        own_of_others=float(np.nanmedian(median_of_others(own)[:, column])),
        standing=float(np.nanmedian(standing[:, column])),
        standing_of_others=float(np.nanmedian(median_of_others(standing)[:, column])),
        positive=float(np.nanmean(attribution.excess[start:, column] > 0)),
        slowest_share=float(np.nanmean(own.argmax(axis=1) == column)),
        certainty=one.found.certainty,
        since=int(joined.steps[start]) if start else None,
        steps=len(own),
        saved=saved,
        step_seconds=step_time(own, attribution.communication[start:]),
    )
