"""Stragglers in jobs whose ranks do different work: each rank is compared with its equals.

Ranks of one pipeline stage are compared with each other. A stage of one rank has no equals, but two
comparisons remain: work that does not belong to a stage (input, saving, Python between steps) is
compared with all other ranks, and all work with the rank's own earlier steps. A stage that becomes
slower at some step is a straggler; one that is slower from the start is an imbalanced stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from mgpu_probes.inprocess.layout import COMMUNICATION, OPTIMIZER, PHASES, WAIT

from mgpu_doctor.analysis.statistics.significance import LEAST_STEPS, change_point
from mgpu_doctor.analysis.steps.step_alignment import Floats, Joined, UnjoinableError, join
from mgpu_doctor.analysis.steps.work_and_wait import (
    Attribution,
    UnattributableError,
    attribute,
    median_of_others,
)
from mgpu_doctor.analysis.stragglers.persistent_stragglers import (
    ASYMMETRY,
    COMPARABLE,
    Straggler,
    find_stragglers,
)
from mgpu_doctor.analysis.structure.job_structure import Structure
from mgpu_doctor.analysis.structure.pipeline_stages import WORK, pipeline_seconds, stage_work
from mgpu_doctor.case.model import Rank

EQUAL = 0.1
"""Optimizer phases are compared across stages if their parameter counts differ by at most this."""
CHANGED = 0.1
"""Minimum increase of a stage's work over its own earlier work. In comparisons between ranks, a
common drift of the machine cancels out; in comparisons with the past it does not."""

Ranks = Sequence[Rank]
Find = Callable[[Ranks], tuple[Straggler, ...]]


def find_stragglers_by_stage(
    ranks: Ranks,
    joined: Joined,
    attribution: Attribution,
    structure: Structure,
) -> tuple[Straggler, ...]:
    """The persistent stragglers, most expensive first; `saved` is of the whole job's step."""
    if structure.alike:
        return find_stragglers(joined, attribution)

    def find(some: Ranks) -> tuple[Straggler, ...]:
        try:
            together = join(some, least=LEAST_STEPS // 2)
            return find_stragglers(together, attribute(together))
        except (UnjoinableError, UnattributableError):
            return ()  # fewer than two of them left enough records

    alone = [rank for rank in ranks if (rank.rank,) in structure.stages]
    equals = [*_among_equals(ranks, structure, find)]
    stragglers = _beyond_usual_spread(equals, joined, attribution, structure)
    if len(alone) == len(structure.stages):
        stragglers += _find_among_single_rank_stages(alone, joined, attribution, structure, find)
    costed = [_with_cost(straggler, joined, structure) for straggler in stragglers]
    return tuple(sorted(costed, key=lambda straggler: -straggler.saved))


def _among_equals(ranks: Ranks, structure: Structure, find: Find) -> Iterator[Straggler]:
    for stage in structure.stages:
        if len(stage) > 1:
            yield from find([rank for rank in ranks if rank.rank in stage])


def _beyond_usual_spread(
    stragglers: list[Straggler], joined: Joined, attribution: Attribution, structure: Structure
) -> list[Straggler]:
    """Stragglers whose excess is larger than the differences within healthy stages. In stages of
    two ranks, nothing else shows how large these are."""
    named = {straggler.rank for straggler in stragglers}
    levels = dict(zip(joined.ranks, np.nanmedian(attribution.own, axis=0), strict=True))
    usual = 0.0
    for stage in structure.stages:
        own = [levels[rank] for rank in stage if rank in levels]
        if own and named.isdisjoint(stage):
            usual = max(usual, max(own) - min(own))
    return [straggler for straggler in stragglers if straggler.excess >= ASYMMETRY * usual]


def _find_among_single_rank_stages(
    ranks: Ranks, joined: Joined, attribution: Attribution, structure: Structure, find: Find
) -> list[Straggler]:
    """Stragglers among pipelines whose stages have one rank each."""
    levels = np.stack(
        [np.nanmedian(_filled(joined, phase), axis=0) for phase in range(len(PHASES))], axis=1
    )
    own_work = np.zeros_like(levels)
    for phase in _incomparable(structure):
        own_work[:, phase] = levels[:, phase]
    beside = find(_levelled(ranks, joined, own_work))
    changed = _find_slower_than_before(ranks, joined, attribution, find)
    known = {straggler.rank for straggler in changed}
    return [*changed, *(stage for stage in beside if stage.rank not in known)]


def _find_slower_than_before(
    ranks: Ranks, joined: Joined, attribution: Attribution, find: Find
) -> list[Straggler]:
    """Ranks that work longer than before (not: ranks next to one that became faster)."""
    before = _phases_before_onset(joined, attribution)
    if before is None:
        return []
    slower = [
        _compared_with_itself(straggler, joined, attribution, before)
        for straggler in find(_levelled(ranks, joined, before))
        if straggler.since is not None
    ]
    return [
        straggler
        for straggler in slower
        if straggler.own - straggler.own_of_others
        >= max(COMPARABLE * straggler.excess, CHANGED * straggler.own_of_others)
    ]


def _compared_with_itself(
    straggler: Straggler, joined: Joined, attribution: Attribution, before: Floats
) -> Straggler:
    """The straggler with its own earlier levels instead of those of the others."""
    column = joined.ranks.index(straggler.rank)
    since = int(np.searchsorted(joined.steps, straggler.since or 0))
    waited = before[column, WAIT] + before[column, COMMUNICATION]
    return replace(
        straggler,
        own=float(np.nanmedian(attribution.own[since:, column])),
        own_of_others=float(before[column].sum() - waited),
        in_collectives=float(np.nanmedian(attribution.in_collectives[since:, column])),
        in_collectives_of_others=float(waited),
    )


def _incomparable(structure: Structure) -> tuple[int, ...]:
    """Phases that depend on the layers of a stage."""
    counts = structure.parameters.values()
    known = len(counts) == len(structure.roles)
    equal = known and max(counts) <= (1 + EQUAL) * min(counts)
    return WORK if equal else (*WORK, OPTIMIZER)


def _phases_before_onset(joined: Joined, attribution: Attribution) -> Floats | None:
    """(R, 10) phases of the ranks before one of them became slower than the others; None if none
    did. If several did, the onset is that of the largest increase."""
    apart = attribution.own - median_of_others(attribution.own)
    growths = dict(_rises(apart))
    if not growths:
        return None
    onset = growths[max(growths)]
    levels = [np.median(_filled(joined, phase)[:onset], axis=0) for phase in range(len(PHASES))]
    return np.stack(levels, axis=1)


def _rises(apart: Floats) -> Iterator[tuple[float, int]]:
    """Increase and onset index of each column whose level rose."""
    for series in apart.T:
        onset = change_point(series) if not np.isnan(series).any() else None
        if onset is not None:
            grew = float(np.median(series[onset:]) - np.median(series[:onset]))
            if grew > 0:
                yield grew, onset


def _filled(joined: Joined, phase: int) -> Floats:
    return np.nan_to_num(joined.phases[:, :, phase])


def _levelled(ranks: Ranks, joined: Joined, usual: Floats) -> list[Rank]:
    """The ranks with the usual differences of their phases removed, so that they can be compared.
    Time in collectives never becomes negative."""
    common = usual.mean(axis=0)
    for phase in (WAIT, COMMUNICATION):
        common[phase] = usual[:, phase].max()
    levelled = []
    for rank in ranks:
        if rank.rank not in joined.ranks:
            continue
        shift = common - usual[joined.ranks.index(rank.rank)]
        steps = rank.steps.copy()
        steps["phases"] = steps["phases"] + shift.astype(np.float32)
        steps["wall_ns"] = steps["wall_ns"] + np.int64(shift.sum() * 1e9)
        levelled.append(replace(rank, steps=steps))
    return levelled


def _with_cost(straggler: Straggler, joined: Joined, structure: Structure) -> Straggler:
    """The straggler with what fixing it saves of the whole job's step, by the pipeline model:
    nothing while another stage is slower."""
    start = (
        int(np.searchsorted(joined.steps, straggler.since)) if straggler.since is not None else 0
    )
    work = stage_work(joined, structure)[start:]
    fixed = work.copy()
    column = structure.roles[straggler.rank]
    inside = sum(straggler.by_phase.get(PHASES[phase]) or 0.0 for phase in WORK)
    fixed[:, column] = np.maximum(fixed[:, column] - max(inside, 0.0), 0)
    m = structure.passes or 1
    faster = np.nanmedian(pipeline_seconds(work, m) - pipeline_seconds(fixed, m))
    step = float(np.mean(joined.wall[start:]))
    saved = (float(faster) + max(0.0, straggler.excess - max(inside, 0.0))) / step
    return replace(
        straggler, saved=min(straggler.excess / step, max(0.0, saved)), step_seconds=step
    )
