"""Which ranks slow down the others persistently, and in which phase.

A rank is a straggler only if all evidence agrees: its own work exceeds that of the others
significantly (in total or in one phase), no other rank has a larger total excess, and the others
spend longer in collectives than it does, by a comparable time.
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
    clipped_autocorrelation,
    estimate,
    persistent,
)
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints
from mgpu_doctor.analysis.steps.warm_up import FIRST_STEPS
from mgpu_doctor.analysis.steps.work_and_wait import OWN_PHASES, Attribution, phase_excess
from mgpu_doctor.analysis.stragglers.fleet import LEAST_RANKS, find_in_large_job, level_limit

FLOOR = 0.02
"""Minimum excess as a share of the step (with many ranks: of the median rank's step without its
wait). Greyhound, arXiv 2410.12588, uses 10 %."""
COMPARABLE = 0.5
"""The others must wait longer than the culprit by at least this share of its excess; and its total
excess must be at least this share of the excess in one phase."""
LEAST_MEETINGS = 5
"""For ranks that do not synchronize in every step: fewer synchronizations show no regularity."""
ALIKE = 0.5
"""A further culprit has at least this share of the first one's excess."""
FLOOR_OF_TWO = 0.03
"""The same with two ranks, where the usual difference between healthy ranks is unknown."""
POOLED = 4
"""Minimum number of ranks to estimate the autocorrelation of steps from all of them."""
PASSING = 2.0
LARGE = 0.5
"""Other virtual machines on the host can slow a core by some tens of percent for about a second,
invisibly from inside. So with few ranks, a straggler must be slow for `PASSING` seconds, unless its
excess is more than this share of the others' work. Seen with steps of 20 ms: 25 % for 0.8 s. With
many ranks, the other ranks show how large such effects are."""
BRIEF = 0.4
"""Such a large excess must have taken this many seconds in all. Other processes on the host may
take a rank's core away from it for some tenths of a second. Of simulated short jobs of two healthy
ranks (tests/support/busy_hosts.py), one in ten had a rank that was so much slower than the other,
with half another process on each core on average; with this limit one in a hundred. How busy the
host was then decides whether that is a warning (`cpu_contention.estimate_waits`): it was for
none of 1,500 jobs."""
ASYMMETRY = 1.5
FEW = 2.0
"""Healthy ranks differ slightly all the time (rank 0 logs, cores are shared). A culprit's excess
must be 1.5 + 2/n times the difference within which most of the n others lie."""
MOST = 0.95


@dataclass(frozen=True, slots=True)
class _Suspect:
    column: int
    persistent: Persistent
    excess: float


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that slows down the others. Seconds are per step, medians or trimmed means."""

    rank: int
    excess: float
    """Own work in excess of the median of the other ranks."""
    by_phase: Mapping[str, float | None]
    """Excess of each phase; None: not measured."""
    own: float
    own_of_others: float
    in_collectives: float
    """Time in collectives, of this rank and of the others. Means if the ranks synchronize only in
    some steps."""
    in_collectives_of_others: float
    positive: float
    """Share of steps, 0..1, in which it worked longer than the median of the others."""
    since: int | None
    """First slow step; None: slow from the first compared step on."""
    steps: int
    """Number of compared steps from then on."""
    saved: float
    """Share of the step time, 0..1, that fixing it saves after those with more excess."""
    step_seconds: float
    """Mean step time from then on."""
    since_before: int | None = None
    """First compared step, if the slowdown began earlier than the records show."""


def find_stragglers(joined: Joined, attribution: Attribution) -> tuple[Straggler, ...]:
    """The persistent stragglers, the worst first; empty if the evidence is inconclusive."""
    if attribution.steps < LEAST_STEPS:
        return ()
    if len(joined.ranks) < LEAST_RANKS:
        step = float(np.median(joined.wall))
        by_rank = _find_in_small_job(joined, attribution, step)
    else:
        # With many ranks, some rank is late in every step. That must not raise the floor.
        step = float(np.nanmedian(attribution.typical + attribution.communication))
        by_rank = find_in_large_job(joined, attribution, step * FLOOR)
    suspects = sorted(
        _suspects_in_total(attribution, by_rank, step), key=lambda _suspect: -_suspect.excess
    )
    if not suspects:
        return ()
    start = suspects[0].persistent.onset
    since = attribution.between(start, len(attribution.own))
    gaps = since.by_column(lambda columns: column_medians(since.excess_of(columns)))
    culprits = [
        suspect
        for suspect in suspects
        if suspect.excess >= ALIKE * suspects[0].excess
        and _is_waited_for(joined, attribution, suspect)
    ]
    if (
        not culprits
        or len(culprits) * 2 > len(joined.ranks)
        or gaps.argmax() != culprits[0].column
        or not _exceed_the_spread(attribution, culprits)
    ):
        return ()
    saved = saved_in_turn(
        attribution, {culprit.column: culprit.excess for culprit in culprits}, start=start
    )
    gained = np.diff(saved, prepend=0.0)
    described = (
        _describe(joined, attribution, culprit, float(more))
        for culprit, more in zip(culprits, gained, strict=True)
    )
    if len(joined.ranks) >= LEAST_RANKS or _seconds_since(joined, start) >= PASSING:
        return tuple(described)
    count = _count_since(joined, start)
    return tuple(
        straggler
        for straggler in described
        if straggler.excess >= max(LARGE * straggler.own_of_others, BRIEF / count)
    )


def _count_since(joined: Joined, start: int) -> int:
    """Steps from the one with this index to the last, also those that were not timed."""
    return int(joined.steps[-1] - joined.steps[start] + 1)


def _seconds_since(joined: Joined, start: int) -> float:
    """From the step with this index to the last."""
    return float(joined.wall[start:, 0].mean()) * _count_since(joined, start)


def _suspects_in_total(
    attribution: Attribution, by_rank: Mapping[int, list[Persistent]], step: float
) -> Iterator[_Suspect]:
    """For each column its clearest excess, if the total own work shows it, too."""
    for column, ways in by_rank.items():
        surest = max(ways, key=lambda way: (way.effect * way.positive, way.certainty))
        beyond = attribution.excess_of(np.array([column]))[surest.onset :, 0]
        beyond = beyond[~np.isnan(beyond)]
        many = attribution.own.shape[1] >= LEAST_RANKS
        excess = estimate(beyond).mean if many else float(np.median(beyond))
        if excess >= max(COMPARABLE * surest.effect, FLOOR * step):
            yield _Suspect(column, surest, excess)


def _find_in_small_job(
    joined: Joined, attribution: Attribution, step: float
) -> dict[int, list[Persistent]]:
    """Column -> persistent excesses, in total or in a phase, judged by the rank's own steps."""
    floor = step * (FLOOR if len(joined.ranks) > 2 else FLOOR_OF_TWO)
    late = column_medians(attribution.newest(2 * LEAST_STEPS).excess)
    likely = np.maximum(column_medians(attribution.excess), late) >= COMPARABLE * floor
    comparisons = len(joined.ranks) * (1 + len(OWN_PHASES))
    series = [attribution.excess]
    by_rank: dict[int, list[Persistent]] = {}
    if not likely.any():
        return {}
    series += [phase_excess(joined, phase) for phase in OWN_PHASES]
    alike = [_common_autocorrelation(values) for values in series]
    for column in np.flatnonzero(likely).tolist():
        for values, usual in zip(series, alike, strict=True):
            persistent = _persistent(values[:, column], comparisons, floor, usual)
            if persistent is not None:
                by_rank.setdefault(column, []).append(persistent)
    return by_rank


def _common_autocorrelation(values: Floats) -> float:
    """Autocorrelation of the median rank; 0 if too few ranks are compared."""
    if values.shape[1] < POOLED:
        return 0.0
    known = [column[~np.isnan(column)] for column in values.T]
    long = [column for column in known if len(column) >= LEAST_STEPS]
    if len(long) < POOLED:
        return 0.0
    return float(np.median([clipped_autocorrelation(column) for column in long]))


def _persistent(values: Floats, comparisons: int, floor: float, alike: float) -> Persistent | None:
    known = ~np.isnan(values)
    if known.all():
        return persistent(values, comparisons=comparisons, floor=floor, alike=alike)
    if known.sum() < max(LEAST_STEPS, len(values) / 2):
        return None
    excess = persistent(values[known], comparisons=comparisons, floor=floor, alike=alike)
    if excess is None:
        return None
    onset = int(np.flatnonzero(known)[excess.onset]) if excess.onset else 0
    return Persistent(excess.effect, excess.certainty, excess.positive, onset)


def _is_waited_for(joined: Joined, attribution: Attribution, _suspect: _Suspect) -> bool:
    """Whether the others spend longer in collectives than the suspect, by a comparable time."""
    own = attribution.in_collectives_of(np.array([_suspect.column]))
    others = attribution.in_collectives_middle.without(own)
    longer = (others - own)[_suspect.persistent.onset :, 0]
    least = COMPARABLE * _suspect.excess
    if np.nanmedian(longer) >= least:
        return True
    return _waits_at_synchronizations(
        joined.steps[_suspect.persistent.onset :], np.nan_to_num(longer), least
    )


def _waits_at_synchronizations(steps: Ints, longer: Floats, least: float) -> bool:
    """The same for ranks that synchronize only every few steps (local SGD), where the others wait
    for all the time that the suspect has lost since the last synchronization. Waits at irregular
    distances do not count. Steps that were left out may have been synchronizations, as their wait
    may look like warm-up."""
    meetings = np.flatnonzero(longer >= least / COMPARABLE)
    apart = np.diff(meetings)
    whole = np.diff(steps[meetings]) == apart
    if whole.sum() < LEAST_MEETINGS - 1:
        return False
    waited = (np.diff(np.cumsum(longer)[meetings]) / apart)[whole]
    apart = apart[whole]
    usual = float(np.median(apart))
    return bool(usual > 1 and apart.max() <= 2 * usual and np.median(waited) >= least)


def _exceed_the_spread(attribution: Attribution, culprits: list[_Suspect]) -> bool:
    """Whether the smallest excess of a culprit is larger than the differences among the others."""
    start = culprits[0].persistent.onset
    own = column_medians(attribution.own[start:])
    levels = np.delete(own, [_suspect.column for _suspect in culprits])
    if len(levels) < 2:
        return True
    usual = float(np.quantile(levels, MOST) - np.median(levels))
    times = ASYMMETRY + FEW / len(levels)
    if not start and len(own) >= LEAST_RANKS:  # no earlier steps show that it was healthy
        times = max(times, level_limit(len(own)) / NormalDist().inv_cdf(MOST))
    return all(culprit.excess >= times * usual for culprit in culprits)


def _describe(
    joined: Joined, attribution: Attribution, _suspect: _Suspect, saved: float
) -> Straggler:
    start, column = _suspect.persistent.onset, _suspect.column
    own = attribution.own[start:, column]
    in_collectives = attribution.in_collectives_of(np.array([column]))
    excess = attribution.excess_of(np.array([column]))[start:, 0]
    others = attribution.in_collectives_middle.without(in_collectives)[start:, 0]
    in_collectives = in_collectives[start:, 0]
    each_step = np.nanmedian(others - in_collectives) >= COMPARABLE * _suspect.excess
    usual = np.nanmedian if each_step else np.nanmean  # no wait in most steps
    cut_off = joined.counted_from >= FIRST_STEPS
    return Straggler(
        rank=joined.ranks[column],
        excess=_suspect.excess,
        by_phase=_excess_by_phase(joined, _suspect),
        own=float(np.nanmedian(own)),
        own_of_others=float(np.nanmedian(own - excess)),
        in_collectives=float(usual(in_collectives)),
        in_collectives_of_others=float(usual(others)),
        positive=float(np.nanmean(excess > 0)),
        since=int(joined.steps[start]) if start else None,
        steps=len(own),
        saved=saved,
        step_seconds=step_time(attribution.own[start:], attribution.communication[start:]),
        since_before=int(joined.steps[0]) if not start and cut_off else None,
    )


def _excess_by_phase(joined: Joined, suspect: _Suspect) -> dict[str, float | None]:
    """Medians; means if the medians explain too little: what happens in every second step does not
    show in the median step."""
    start, column = suspect.persistent.onset, np.array([suspect.column])
    series = {PHASES[phase]: phase_excess(joined, phase, column)[start:, 0] for phase in OWN_PHASES}
    known = {phase: values for phase, values in series.items() if not np.isnan(values).all()}
    by_phase = {phase: float(np.nanmedian(values)) for phase, values in known.items()}
    if sum(by_phase.values()) < COMPARABLE * suspect.excess:
        by_phase = {phase: float(np.nanmean(values)) for phase, values in known.items()}
    return {phase: by_phase.get(phase) for phase in series}
