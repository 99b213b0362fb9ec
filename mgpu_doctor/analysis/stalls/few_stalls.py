"""Stalls that are too few to recur for certain, and so long that they take much of the time. Pure.

Two evaluations of a minute on one rank are a tenth of a quarter of an hour. Two stalls prove no
pattern, so only those count in which the rank itself computed: a machine that interrupts a rank, or
storage that does not answer, leaves its thread without a core.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import COMMUNICATION, PHASES, WAIT

from mgpu_doctor.analysis.cost.what_if import saved_if_removed
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats
from mgpu_doctor.analysis.steps.work_and_wait import Attribution

LEAST_SECONDS = 1.0
LEAST_STEPS = 20.0
"""Least duration of a stall in seconds and in median steps. A choice."""
LEAST_STALLS = 2
"""One stall alone may be anything."""
MOST_SHARE = 0.05
"""Share of the steps above which the stalls are no exceptions."""
LEAST_COST = 0.1
"""Share of the time, 0..1, that is saved without them. A choice: the user would notice it."""
COMPUTED = 0.8
"""Share of a stall in which the rank's main thread was on a CPU, at least."""
ALONE = 0.8
"""Share of a stall in which its rank worked and every other rank waited."""


def find_few_stalls(joined: Joined, attribution: Attribution) -> Stalls | None:
    """The long stalls of one rank for which all others waited; None if none."""
    known = ~np.isnan(attribution.own).any(axis=1)
    own, waits = attribution.own[known], attribution.in_collectives[known]
    running = joined.running[known]
    if len(own) < LEAST_STALLS or np.isnan(running).any():
        return None
    walls = (own + waits).max(axis=1)
    usual = float(np.median(walls))
    least = max(LEAST_SECONDS, LEAST_STEPS * usual)
    longer = own - np.median(own, axis=0)
    waited = waits - np.median(waits, axis=0)
    stalls = list(_stalls(walls >= least, longer, waited, least))
    columns = {column for column, _, _ in stalls}
    long_steps = int(np.count_nonzero(walls >= least))
    if len(stalls) < LEAST_STALLS or len(columns) > 1 or long_steps > MOST_SHARE * len(own):
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
    computed = running[:, column] - np.median(running[:, column])
    shares = [
        float(computed[first:end].sum()) / seconds
        for (_, first, end), seconds in zip(stalls, lengths, strict=True)
    ]
    if min(shares) < COMPUTED:
        return None
    phases = np.nan_to_num(joined.phases[:, [column]][rows, 0])
    extra = sum(
        phases[first:end].sum(axis=0) - (end - first) * np.median(phases, axis=0)
        for _, first, end in stalls
    )
    extra[[WAIT, COMMUNICATION]] = 0
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
        running=min(1.0, float(np.median(shares))),
        waited=float(np.median([_least_wait(waited, *stall) for stall in stalls])),
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
