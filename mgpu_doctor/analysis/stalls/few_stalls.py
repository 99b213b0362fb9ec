"""The newest stalls of a job: those that recur, and those that are too few to recur for certain,
and so long that they take much of the time. Pure.

One evaluation of a minute on one rank is a tenth of ten minutes. One or two stalls prove no
pattern, so only those count that are the rank's own: it saved or evaluated, its thread computed, or
its thread was idle and no machine that interrupted it kept it waiting for a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import CHECKPOINT, COMMUNICATION, EVALUATION, PHASES, WAIT

from mgpu_doctor.analysis.cost.what_if import saved_if_removed
from mgpu_doctor.analysis.machines.cpu_contention import queued_between
from mgpu_doctor.analysis.machines.rank_samples import RankSamples
from mgpu_doctor.analysis.stalls.periodic_stalls import Pauses, Stalls, find_stalls
from mgpu_doctor.analysis.statistics.medians import column_blocks
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.warm_up import FIRST_STEPS
from mgpu_doctor.analysis.steps.work_and_wait import Attribution
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.second_process import Divided

LEAST_SECONDS = 1.0
LEAST_STEPS = 20.0
"""Least duration of a stall in seconds and in median steps. A choice."""
MOST_SHARE = 0.05
"""Share of the steps above which the stalls are no exceptions."""
LEAST_COST = 0.05
"""Share of the time, 0..1, that is saved without them: what makes other findings about speed a
warning."""
COMPUTED = 0.8
"""Share of a stall in which the rank's main thread was on a CPU, from which it computed."""
ALONE = 0.8
"""Share of a stall in which its rank worked and every other rank waited, and which what the rank
did must explain."""

MOST_CELLS = 2_500_000
"""Most (step, rank) cells searched for stalls, the newest: 250 steps of 10,000 ranks. More would
take most of the memory of the whole analysis (benchmarks/detection.py)."""


def find_newest_stalls(
    joined: Joined,
    attribution: Attribution,
    ranks: Sequence[Rank],
    sampled: RankSamples,
) -> Divided[tuple[Stalls, ...] | None]:
    """Recurring stalls of the newest steps, and few ones in other steps. None: only some of the
    steps were timed. What the ranks themselves tell is read before the work begins: a second
    process that touched thousands of them would need a copy of each."""
    if joined.is_sampled:
        return Divided([], lambda _: None)
    count = len(joined.steps)
    first = max(0, count - MOST_CELLS // len(joined.ranks))
    if first:
        joined, attribution = joined.between(first, count), attribution.between(first, count)
    pauses = Pauses.of(joined, ranks)
    return Divided.in_one(partial(_find_stalls, joined, attribution, pauses, sampled))


def _find_stalls(
    joined: Joined, attribution: Attribution, pauses: Pauses, sampled: RankSamples
) -> tuple[Stalls, ...] | None:
    recurring = find_stalls(joined, attribution, pauses)
    few = find_few_stalls(joined, attribution, pauses, sampled)
    known = {step for stalls in recurring for step in stalls.steps}
    return recurring if few is None or known & {*few.steps} else (few, *recurring)


def find_few_stalls(
    joined: Joined, attribution: Attribution, pauses: Pauses, sampled: RankSamples
) -> Stalls | None:
    """The long stalls of one rank for which all others waited; None if none."""
    without = pauses.without_compiling(attribution.own)
    known = ~np.isnan(without).any(axis=1)
    if not known.any():
        return None
    longest = [
        (without[:, columns] + attribution.in_collectives_of(columns)).max(axis=1)
        for columns in column_blocks(without)
    ]
    walls = np.max(longest, axis=0)[known]
    usual = float(np.median(walls))
    least = max(LEAST_SECONDS, LEAST_STEPS * usual)
    if walls.max() < least:
        return None
    own, waits = without[known], attribution.in_collectives[known]
    longer = own - np.median(own, axis=0)
    waited = waits - np.median(waits, axis=0)
    under_way = joined.steps[known] >= FIRST_STEPS
    stalls = list(_stalls((walls >= least) & under_way, longer, waited, least))
    columns = {column for column, _, _ in stalls}
    long_steps = int(np.count_nonzero(walls >= least))
    if len(columns) != 1 or long_steps > MOST_SHARE * len(own):
        return None
    column = columns.pop()
    removed = np.zeros_like(own)
    for _, first, end in stalls:
        removed[first:end, column] = np.maximum(longer[first:end, column], 0)
    saved = saved_if_removed(own, attribution.communication[known], removed)
    if saved < LEAST_COST:
        return None
    rows = np.flatnonzero(known)
    lengths = [float(removed[first:end, column].sum()) for _, first, end in stalls]
    running = joined.running[rows, column]
    computed = running - np.median(running)
    shares = [
        float(computed[first:end].sum()) / seconds
        for (_, first, end), seconds in zip(stalls, lengths, strict=True)
    ]
    phases = np.nan_to_num(joined.phases[:, [column]][rows, 0])
    extra = np.zeros(len(PHASES))
    for _, first, end in stalls:
        extra += phases[first:end].sum(axis=0) - (end - first) * np.median(phases, axis=0)
    extra[[WAIT, COMMUNICATION]] = 0
    begins = joined.end[rows, column] - joined.wall[rows, column]
    readings = sampled.readings(joined.ranks[column])
    queued = [
        queued_between(readings, begins[first], joined.end[rows[end - 1], column])
        for _, first, end in stalls
    ]
    if (
        extra[[CHECKPOINT, EVALUATION]].sum() < ALONE * sum(lengths)
        and not min(shares) >= COMPUTED
        and not all(
            wait is not None and wait <= (1 - ALONE) * seconds
            for wait, seconds in zip(queued, lengths, strict=True)
        )
    ):
        return None
    return Stalls(
        ranks=(joined.ranks[column],),
        phase=PHASES[int(np.argmax(extra))],
        steps=tuple(int(joined.steps[rows[first]]) for _, first, _ in stalls),
        count=len(stalls),
        period=None,
        seconds=float(np.median(lengths)),
        saved=saved,
        compared=len(own),
        total=sum(lengths),
        running=None if np.isnan(shares).any() else float(np.clip(min(shares), 0, 1)),
        waited=float(np.median([_least_wait(waited, *stall) for stall in stalls])),
        are_few=True,
    )


def _stalls(
    is_long: npt.NDArray[np.bool_], longer: Floats, waited: Floats, least: float
) -> Iterator[tuple[int, int, int]]:
    """Column, first row and row after the last of every stall: one rank works, and the others wait
    in the same step or, if it stalls after its collectives, in the next one."""
    row = 0
    while row < len(is_long):
        if not is_long[row]:
            row += 1
            continue
        end = row + 1
        while end < len(is_long) and is_long[end]:
            end += 1
        work = longer[row:end].sum(axis=0)
        column = int(work.argmax())
        if work[column] >= ALONE * least and work.shape[0] > 1:
            wait = _least_wait(waited, column, row, end)
            if wait >= ALONE * work[column]:
                yield column, row, end
        row = end


def _least_wait(waited: Floats, column: int, first: int, end: int) -> float:
    """Seconds that each of the other ranks waited longer than usual, at least."""
    others = np.delete(waited[first : end + 1], column, axis=1)
    return float(others.sum(axis=0).min())
