"""Which ranks hold the others up, persistently, and in which phase.

A rank is named only if all of this agrees: its own work exceeds that of the others significantly
(in sum or in one phase), no other rank's sum exceeds more, and the others stand in collectives
longer than it does by a comparable time. Otherwise nobody is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from mgpu_probes.inprocess.layout import PHASES

from mgpu_doctor.analysis.cost.what_if import saved_in_turn, step_time
from mgpu_doctor.analysis.statistics.medians import column_medians
from mgpu_doctor.analysis.statistics.significance import (
    LEAST_STEPS,
    Persistent,
    alike_in,
    estimate,
    persistent,
)
from mgpu_doctor.analysis.steps.step_alignment import FIRST_STEPS, Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.work_and_wait import OWN_PHASES, Attribution, phase_excess
from mgpu_doctor.analysis.stragglers.fleet import LEAST_RANKS, among_many, level_limit

FLOOR = 0.02
"""Least excess as a share of the step, of many ranks: of the median rank's without its wait
(Greyhound, arXiv 2410.12588, has 10 %)."""
COMPARABLE = 0.5
"""The others must wait longer than the culprit by this share of its excess, at least; and the sum
of its phases must show this share of what one phase shows."""
LEAST_MEETINGS = 5
"""Of ranks that do not meet in every step: fewer do not show that they meet regularly."""
ALIKE = 0.5
"""A second culprit has at least this share of the first one's excess."""
FLOOR_OF_TWO = 0.03
"""The same where there are two ranks, as nothing tells how much healthy ones differ."""
POOLED = 4
"""So many ranks together tell how alike neighbouring steps are."""
PASSING = 2.0
LARGE = 0.5
"""What other virtual machines do to a core (nothing on this one shows it) makes a rank some tenths
slower for about a second: of few ranks one must be slower for `PASSING` seconds to be told, unless
it is by more than this share of the others' work. Seen with steps of 20 ms: 25 % for 0.8 s. Many
ranks show by themselves how much such things make one of them differ."""
ASYMMETRY = 1.5
FEW = 2.0
"""Healthy ranks differ a little for good (rank 0 logs, cores are shared): a culprit exceeds the
others by 1.5 + 2/n times the difference that the most of those n keep; few show less of it."""
MOST = 0.95


@dataclass(frozen=True, slots=True)
class _Suspect:
    column: int
    found: Persistent
    excess: float


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
    """In collectives, the culprit; then the others. Means where ranks meet at few steps only."""
    standing_of_others: float
    positive: float
    """Share of steps in which it worked longer than the median of the others."""
    slowest_share: float
    certainty: float
    since: int | None
    """Step at which it began; None: as far back as steps were compared."""
    steps: int
    """Steps compared since then."""
    saved: float
    """Share of the step time, 0..1, that mending it saves, those with more excess mended first."""
    step_seconds: float
    """Mean step time since then."""
    since_before: int | None = None
    """First step compared, where it began before and the records do not tell when."""
    until: int | None = None
    """Last step of an excess that is over; None: it lasts."""


def find_stragglers(joined: Joined, attribution: Attribution) -> tuple[Straggler, ...]:
    """The persistent stragglers, the worst first; empty where the evidence does not decide."""
    if attribution.steps < LEAST_STEPS:
        return ()
    if len(joined.ranks) < LEAST_RANKS:
        step = float(np.median(joined.wall))
        found = _by_themselves(joined, attribution, step)
    else:
        # Of many ranks some one is late in every step: that makes the step longer, not the floor.
        step = float(np.nanmedian(attribution.typical + attribution.communication))
        found = among_many(joined, attribution, step * FLOOR)
    suspects = sorted(_in_sum(attribution, found, step), key=lambda one: -one.excess)
    if not suspects:
        return ()
    start = suspects[0].found.onset
    gaps = column_medians(attribution.excess[start:])
    culprits = [
        one
        for one in suspects
        if one.excess >= ALIKE * suspects[0].excess and _is_waited_for(joined, attribution, one)
    ]
    if (
        not culprits
        or len(culprits) * 2 > len(joined.ranks)
        or gaps.argmax() != culprits[0].column
        or not _stand_out(attribution, culprits)
    ):
        return ()
    saved = saved_in_turn(attribution, {one.column: one.excess for one in culprits}, start=start)
    gained = np.diff(saved, prepend=0.0)
    described = (
        _describe(joined, attribution, one, float(more))
        for one, more in zip(culprits, gained, strict=True)
    )
    if len(joined.ranks) >= LEAST_RANKS or joined.wall[start:, 0].sum() >= PASSING:
        return tuple(described)
    return tuple(one for one in described if one.excess >= LARGE * one.own_of_others)


def _in_sum(
    attribution: Attribution, found: Mapping[int, list[Persistent]], step: float
) -> Iterator[_Suspect]:
    """Of what was found in a column, what shows best, if the sum of its phases shows it too."""
    for column, ways in found.items():
        surest = max(ways, key=lambda one: (one.effect * one.positive, one.certainty))
        beyond = attribution.excess[surest.onset :, column]
        beyond = beyond[~np.isnan(beyond)]
        many = len(attribution.excess[0]) >= LEAST_RANKS
        excess = estimate(beyond).mean if many else float(np.median(beyond))
        if excess >= max(COMPARABLE * surest.effect, FLOOR * step):
            yield _Suspect(column, surest, excess)


def _by_themselves(
    joined: Joined, attribution: Attribution, step: float
) -> dict[int, list[Persistent]]:
    """Columns with a persistent excess in sum or in a phase, each judged by its own steps."""
    floor = step * (FLOOR if len(joined.ranks) > 2 else FLOOR_OF_TWO)
    late = column_medians(attribution.excess[-2 * LEAST_STEPS :])
    likely = np.maximum(column_medians(attribution.excess), late) >= COMPARABLE * floor
    comparisons = len(joined.ranks) * (1 + len(OWN_PHASES))
    series = [attribution.excess]
    found: dict[int, list[Persistent]] = {}
    if not likely.any():
        return {}
    series += [phase_excess(joined, phase) for phase in OWN_PHASES]
    alike = [_alike(values) for values in series]
    for column in np.flatnonzero(likely).tolist():
        for values, usual in zip(series, alike, strict=True):
            one = _persistent(values[:, column], comparisons, floor, usual)
            if one is not None:
                found.setdefault(column, []).append(one)
    return found


def _alike(values: Floats) -> float:
    """Autocorrelation of the median rank, slow ones being few; 0 where too few are compared."""
    known = [column[~np.isnan(column)] for column in values.T]
    found = [alike_in(column) for column in known if len(column) >= LEAST_STEPS]
    return float(np.median(found)) if len(found) >= POOLED else 0.0


def _persistent(values: Floats, comparisons: int, floor: float, alike: float) -> Persistent | None:
    known = ~np.isnan(values)
    if known.all():
        return persistent(values, comparisons=comparisons, floor=floor, alike=alike)
    if known.sum() < max(LEAST_STEPS, len(values) / 2):
        return None
    found = persistent(values[known], comparisons=comparisons, floor=floor, alike=alike)
    if found is None:
        return None
    onset = int(np.flatnonzero(known)[found.onset]) if found.onset else 0
    return Persistent(found.effect, found.certainty, found.positive, onset)


def _is_waited_for(joined: Joined, attribution: Attribution, one: _Suspect) -> bool:
    """Whether the others stand in collectives longer than the suspect, by a comparable time."""
    standing = attribution.standing[:, [one.column]]
    longer = (attribution.standing_middle.without(standing) - standing)[one.found.onset :, 0]
    least = COMPARABLE * one.excess
    if np.nanmedian(longer) >= least:
        return True
    return _at_meetings(joined.steps[one.found.onset :], np.nan_to_num(longer), least)


def _at_meetings(steps: Ints, longer: Floats, least: float) -> bool:
    """The same where ranks meet at every few steps only (local SGD), and the others wait there for
    all that the suspect has lost since. Waits that come by chance are no meetings. Steps that were
    left out (the wait of a meeting may look like warm-up) may have been some."""
    meetings = np.flatnonzero(longer >= least / COMPARABLE)
    apart = np.diff(meetings)
    whole = np.diff(steps[meetings]) == apart
    if whole.sum() < LEAST_MEETINGS - 1:
        return False
    waited = (np.diff(np.cumsum(longer)[meetings]) / apart)[whole]
    apart = apart[whole]
    usual = float(np.median(apart))
    return bool(usual > 1 and apart.max() <= 2 * usual and np.median(waited) >= least)


def _stand_out(attribution: Attribution, culprits: list[_Suspect]) -> bool:
    """Whether the least culprit exceeds the rest by more than those differ among themselves."""
    start = culprits[0].found.onset
    own = column_medians(attribution.own[start:])
    levels = np.delete(own, [one.column for one in culprits])
    if len(levels) < 2:
        return True
    usual = float(np.quantile(levels, MOST) - np.median(levels))
    times = ASYMMETRY + FEW / len(levels)
    if not start and len(own) >= LEAST_RANKS:  # its own past does not tell it from a healthy one
        times = max(times, level_limit(len(own)) / NormalDist().inv_cdf(MOST))
    return all(one.excess >= times * usual for one in culprits)


def _describe(joined: Joined, attribution: Attribution, one: _Suspect, saved: float) -> Straggler:
    start, column = one.found.onset, one.column
    own, standing = attribution.own[start:, column], attribution.standing[start:, column]
    excess = attribution.excess[start:, column]
    others = attribution.standing_middle.without(attribution.standing[:, [column]])[start:, 0]
    each_step = np.nanmedian(others - standing) >= COMPARABLE * one.excess
    usual = np.nanmedian if each_step else np.nanmean  # most steps have no meeting, so no wait
    slowest = attribution.slowest[-int(np.sum(~np.isnan(own))) :]
    cut_off = joined.counted_from >= FIRST_STEPS
    by_phase: dict[str, float | None] = {}
    for phase in OWN_PHASES:
        values = phase_excess(joined, phase, np.array([column]))[start:]
        by_phase[PHASES[phase]] = None if np.isnan(values).all() else float(np.nanmedian(values))
    return Straggler(
        rank=joined.ranks[column],
        excess=one.excess,
        by_phase=by_phase,
        own=float(np.nanmedian(own)),
        own_of_others=float(np.nanmedian(own - excess)),
        standing=float(usual(standing)),
        standing_of_others=float(usual(others)),
        positive=float(np.nanmean(excess > 0)),
        slowest_share=float(np.mean(slowest == column)),
        certainty=one.found.certainty,
        since=int(joined.steps[start]) if start else None,
        steps=len(own),
        saved=saved,
        step_seconds=step_time(attribution.own[start:], attribution.communication[start:]),
        since_before=int(joined.steps[0]) if not start and cut_off else None,
    )
