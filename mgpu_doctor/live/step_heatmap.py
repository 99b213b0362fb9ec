"""The heat map of the newest steps: each rank's own work beyond the other ranks'. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mgpu_doctor.case.attempts import are_independent
from mgpu_doctor.case.device_times import on_one_clock, untimed
from mgpu_doctor.case.model import Case

RECENT = 240
"""Steps used: about as many as the widest usual screen shows, one per column."""
LEAST_RANKS = 2
LEAST_TIMED = 10
"""Steps of a rank timed on its device, if it uses one."""
TOO_FEW = ("none", "only one")
SPARE = 24
"""Extra records per rank, because ranks are read at slightly different steps."""


@dataclass(frozen=True, slots=True, eq=False)
class Heatmap:
    """`excess[r, t]`: own work of rank `ranks[r]` in step `steps[t]` beyond the median of the other
    ranks, as a share of that median; NaN: not measured."""

    ranks: tuple[int, ...]
    steps: npt.NDArray[np.int64]
    excess: npt.NDArray[np.float64]


def make_heatmap(case: Case, stages: Sequence[Sequence[int]] = ()) -> Heatmap | str:
    """Returns the map, or one sentence why there is none. `stages`: the ranks of each pipeline
    stage, which are compared with each other if each stage has several."""
    # Imported here: modules that only need the type have no job to examine.
    from mgpu_doctor.analysis.statistics.medians import median_of_others
    from mgpu_doctor.analysis.steps.step_alignment import UnjoinableError, join
    from mgpu_doctor.analysis.steps.work_and_wait import UnattributableError, attribute

    stepped = sum(bool(len(rank.steps)) for rank in case.ranks)
    if stepped < LEAST_RANKS:
        lonely = len(case.ranks) == 1 and case.job.world_size in (None, 1)
        known = "this job has one" if lonely else f"{TOO_FEW[stepped]} has ended a step so far"
        return f"it compares ranks, and {known}"
    if are_independent(case.ranks):
        return "it compares ranks, and these have no process group: none waits for another"
    if untimed(case.ranks, LEAST_TIMED):
        return "it compares own work, and host clocks do not measure work on devices"
    try:
        joined = join([on_one_clock(rank) for rank in case.ranks], newest=RECENT + SPARE)
        attribution = attribute(joined)
    except (UnjoinableError, UnattributableError) as reason:
        return str(reason)
    others = attribution.own - attribution.excess
    teams = [np.flatnonzero(np.isin(joined.ranks, stage)) for stage in stages]
    if min(map(len, teams), default=0) >= LEAST_RANKS:
        for team in teams:
            others[:, team] = median_of_others(attribution.own[:, team])
    excess = np.full_like(others, np.nan)
    beyond = attribution.own - others
    np.divide(beyond, others, out=excess, where=np.nan_to_num(others) > 0)
    return Heatmap(joined.ranks, joined.steps[-RECENT:], excess.T[:, -RECENT:])
