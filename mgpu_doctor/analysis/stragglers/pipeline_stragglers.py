"""Stragglers where ranks do different work: each is compared with its equals.

Ranks of one pipeline stage are compared with each other. A stage of one rank has no equal; then two
things can be compared all the same: what is no work of a stage (input, saving, Python between
steps) with all other ranks, and everything with what it was before: a stage that became slower at
some step is a straggler, one that was slower from the start is an unequal stage.
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
"""Optimizers are compared across stages whose numbers of parameters differ by no more than this."""
CHANGED = 0.1
"""Of its own work before: by how much more a stage must work for a change to be told. Beside other
ranks a common drift of the machine cancels out; nothing takes it out of a rank's own past."""

Ranks = Sequence[Rank]
Find = Callable[[Ranks], tuple[Straggler, ...]]


def find_in_roles(
    ranks: Ranks,
    joined: Joined,
    attribution: Attribution,
    structure: Structure,
) -> tuple[Straggler, ...]:
    """The persistent stragglers, the dearest first; `saved` is of the whole job's step."""
    if structure.alike:
        return find_stragglers(joined, attribution)

    def find(some: Ranks) -> tuple[Straggler, ...]:
        try:
            together = join(some, least=LEAST_STEPS // 2)
            return find_stragglers(together, attribute(together))
        except (UnjoinableError, UnattributableError):
            return ()  # fewer than two of them left enough records

    alone = [one for one in ranks if (one.rank,) in structure.stages]
    equals = [*_among_equals(ranks, structure, find)]
    found = _standing_out(equals, joined, attribution, structure)
    if len(alone) == len(structure.stages):
        found += _of_stages(alone, joined, attribution, structure, find)
    costed = [_with_cost(one, joined, structure) for one in found]
    return tuple(sorted(costed, key=lambda one: -one.saved))


def _among_equals(ranks: Ranks, structure: Structure, find: Find) -> Iterator[Straggler]:
    for stage in structure.stages:
        if len(stage) > 1:
            yield from find([one for one in ranks if one.rank in stage])


def _standing_out(
    found: list[Straggler], joined: Joined, attribution: Attribution, structure: Structure
) -> list[Straggler]:
    """Those that exceed their equals by more than healthy equals of other stages differ: where a
    stage has two ranks, nothing else tells how much that is."""
    named = {one.rank for one in found}
    levels = dict(zip(joined.ranks, np.nanmedian(attribution.own, axis=0), strict=True))
    usual = 0.0
    for stage in structure.stages:
        own = [levels[rank] for rank in stage if rank in levels]
        if own and named.isdisjoint(stage):
            usual = max(usual, max(own) - min(own))
    return [one for one in found if one.excess >= ASYMMETRY * usual]


def _of_stages(
    ranks: Ranks, joined: Joined, attribution: Attribution, structure: Structure, find: Find
) -> list[Straggler]:
    """Stragglers among stages of one rank each."""
    levels = np.stack(
        [np.nanmedian(_filled(joined, phase), axis=0) for phase in range(len(PHASES))], axis=1
    )
    own_work = np.zeros_like(levels)
    for phase in _incomparable(structure):
        own_work[:, phase] = levels[:, phase]
    beside = find(_levelled(ranks, joined, own_work))
    changed = _changed(ranks, joined, attribution, find)
    known = {one.rank for one in changed}
    return [*changed, *(one for one in beside if one.rank not in known)]


def _changed(ranks: Ranks, joined: Joined, attribution: Attribution, find: Find) -> list[Straggler]:
    """Ranks that work longer than before; one beside which another became faster does not."""
    before = _before(joined, attribution)
    if before is None:
        return []
    found = [
        _against_itself(one, joined, attribution, before)
        for one in find(_levelled(ranks, joined, before))
        if one.since is not None
    ]
    return [
        one
        for one in found
        if one.own - one.own_of_others >= max(COMPARABLE * one.excess, CHANGED * one.own_of_others)
    ]


def _against_itself(
    one: Straggler, joined: Joined, attribution: Attribution, before: Floats
) -> Straggler:
    """The straggler with its own levels, before and since, instead of those of the others."""
    column = joined.ranks.index(one.rank)
    since = int(np.searchsorted(joined.steps, one.since or 0))
    waited = before[column, WAIT] + before[column, COMMUNICATION]
    return replace(
        one,
        own=float(np.nanmedian(attribution.own[since:, column])),
        own_of_others=float(before[column].sum() - waited),
        standing=float(np.nanmedian(attribution.standing[since:, column])),
        standing_of_others=float(waited),
    )


def _incomparable(structure: Structure) -> tuple[int, ...]:
    """Phases that depend on what a stage holds."""
    counts = structure.parameters.values()
    known = len(counts) == len(structure.roles)
    equal = known and max(counts) <= (1 + EQUAL) * min(counts)
    return WORK if equal else (*WORK, OPTIMIZER)


def _before(joined: Joined, attribution: Attribution) -> Floats | None:
    """(R, 10) the ranks' phases before one of them began to work longer, compared with the others;
    None where none did. Where several did, the one that grew most tells when."""
    apart = attribution.own - median_of_others(attribution.own)
    growths = dict(_growths(apart))
    if not growths:
        return None
    onset = growths[max(growths)]
    levels = [np.median(_filled(joined, phase)[:onset], axis=0) for phase in range(len(PHASES))]
    return np.stack(levels, axis=1)


def _growths(apart: Floats) -> Iterator[tuple[float, int]]:
    """How much the level of each column grew, and at which step."""
    for series in apart.T:
        onset = change_point(series) if not np.isnan(series).any() else None
        if onset is not None:
            grew = float(np.median(series[onset:]) - np.median(series[:onset]))
            if grew > 0:
                yield grew, onset


def _filled(joined: Joined, phase: int) -> Floats:
    return np.nan_to_num(joined.phases[:, :, phase])


def _levelled(ranks: Ranks, joined: Joined, usual: Floats) -> list[Rank]:
    """The ranks with the usual difference of their phases taken out: what is left can be compared.
    Time in collectives never becomes negative by it."""
    common = usual.mean(axis=0)
    for phase in (WAIT, COMMUNICATION):
        common[phase] = usual[:, phase].max()
    levelled = []
    for one in ranks:
        if one.rank not in joined.ranks:
            continue
        shift = common - usual[joined.ranks.index(one.rank)]
        steps = one.steps.copy()
        steps["phases"] = steps["phases"] + shift.astype(np.float32)
        steps["wall_ns"] = steps["wall_ns"] + np.int64(shift.sum() * 1e9)
        levelled.append(replace(one, steps=steps))
    return levelled


def _with_cost(one: Straggler, joined: Joined, structure: Structure) -> Straggler:
    """What mending it saves of the whole job's step, by the model of a pipeline: nothing as long as
    another stage is slower."""
    start = int(np.searchsorted(joined.steps, one.since)) if one.since is not None else 0
    work = stage_work(joined, structure)[start:]
    mended = work.copy()
    column = structure.roles[one.rank]
    inside = sum(one.by_phase.get(PHASES[phase]) or 0.0 for phase in WORK)
    mended[:, column] = np.maximum(mended[:, column] - max(inside, 0.0), 0)
    m = structure.passes or 1
    faster = np.nanmedian(pipeline_seconds(work, m) - pipeline_seconds(mended, m))
    step = float(np.mean(joined.wall[start:]))
    saved = (float(faster) + max(0.0, one.excess - max(inside, 0.0))) / step
    return replace(one, saved=min(one.excess / step, max(0.0, saved)), step_seconds=step)
