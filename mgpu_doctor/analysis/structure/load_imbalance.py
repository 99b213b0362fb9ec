"""Whether ranks get unequal amounts of data, and whether that makes them slow.

The load of a step is its samples or tokens as the probe counted them at the loader. Work can at
most be proportional to it: a rank with a tenth more samples and twice the work is slow for
another reason.

Where nothing counts the load (padded batches, experts, loops without a loader), work shows it: in
a step with more data a rank's forward pass and its backward pass both take longer, and its CPU
works as long. What a machine does to a rank strikes one of them at random.

Stages of a pipeline always differ. There, even work is each rank's usual share of the step's work:
what varies is which pipeline, or which stage, has more in a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from mgpu_probes.inprocess.layout import BACKWARD, FORWARD

from mgpu_doctor.analysis.cost.what_if import saved_if_removed
from mgpu_doctor.analysis.stalls.recompilation import compiling_seconds
from mgpu_doctor.analysis.statistics.medians import median_of_others
from mgpu_doctor.analysis.steps.step_alignment import Joined
from mgpu_doctor.analysis.steps.step_cells import Floats, Ints, is_constant
from mgpu_doctor.analysis.steps.work_and_wait import Attribution, reference
from mgpu_doctor.analysis.stragglers.persistent_stragglers import Straggler
from mgpu_doctor.analysis.structure.job_structure import Structure
from mgpu_doctor.analysis.structure.pipeline_stages import WORK, pipeline_seconds
from mgpu_doctor.case.model import Rank

MORE = 1.05
"""A rank has more data from 5 % more on."""
EXPLAINS = 0.5
"""Share of a rank's excess that its load must explain (as any other cause)."""
COUNTED = 0.9
"""Share of the steps whose load must be known on all ranks."""
VARIES = 0.02
"""Least spread of the load over ranks, as a share of its mean."""
SURE = 6.0
"""Least t of the correlation of load and work over all steps and ranks."""
TOGETHER = 0.3
"""Least correlation: below, it explains less than a tenth of the differences in work."""
BOTH_PASSES = 0.5
"""Least correlation of forward and backward passes over steps and ranks, for work that differs by
its data. Seen in jobs with random sequence lengths: 0.74 to 0.9; in healthy ones, on quiet and on
busy cores: 0.2 at most."""
COMPUTED = 0.8
"""Least correlation of own work with the CPU time of the main thread, where the CPU computes. Seen
in the same jobs: 0.98 or more, and 0.6 at most."""
LASTS = 0.5
"""Correlation with the step before from which on it is no new batch that makes the difference."""
LEAST_MEASURED = 3
"""Steps in which both passes of all ranks must be known."""
EXTREMES = 0.01
"""Share of the differences in work that is clipped at each end."""
_Steps = npt.NDArray[np.bool_]
"""(T) which steps count: in those in which a rank compiles, that makes the difference."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """Stragglers that are such because they have more data than the others, step after step."""

    ranks: tuple[int, ...]
    unit: str
    """`samples` or `tokens`."""
    load: float
    """A step, mean over them."""
    load_of_others: float
    explained: float
    """Share of their excess."""
    saved: float
    """Share of the step time, 0..1, without their excess."""
    saved_level: float
    """The same if all ranks had equal shares of the same total."""


@dataclass(frozen=True, slots=True)
class Varying:
    """Ranks that have more data in different steps, alternately."""

    unit: str
    most: float
    """Mean over steps of the largest load as a multiple of the mean load."""
    correlation: float
    slowest_has_most: float
    """Share of steps in which the rank with the most work had the most data."""
    seconds: float
    """A step, that the differences cost."""
    saved: float
    """Share of the step time, 0..1, if all ranks had equal loads in each step."""


@dataclass(frozen=True, slots=True)
class VaryingWork:
    """Ranks that have more work in different steps, alternately, by the work alone."""

    longest: float
    """Mean over steps of the most work of a rank, as a multiple of what even work would be."""
    both_passes: float
    """Correlation of forward and backward passes over steps and ranks."""
    slowest_most_often: float
    """Share of the steps in which the rank that is slowest most often is the slowest."""
    seconds: float
    """Per step, that the differences cost."""
    saved: float
    """Share of the step time, 0..1, if all ranks had even work in each step."""
    in_stages: bool = False
    """Whether the ranks are stages of pipelines, compared with their usual shares."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The cost of unequal data; None: no cost, or unknown."""

    uneven: Uneven | None = None
    varying: Varying | None = None
    work: VaryingWork | None = None
    """Only if no count of samples or tokens explains the differences."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Work follows load: seconds a unit, and how surely."""

    unit: str
    load: Floats
    slope: float
    correlation: float


def find_loads(
    joined: Joined,
    attribution: Attribution,
    ranks: Sequence[Rank],
    stragglers: Sequence[Straggler],
    structure: Structure,
) -> Loads:
    """The unequal loads, and the work that they explain."""
    uneven = [_uneven(joined, attribution, stragglers, unit, load) for unit, load in _loads(joined)]
    most = max((load for load in uneven if load), key=lambda load: load.explained, default=None)
    varying = _varying(joined, attribution)
    if varying is not None:
        return Loads(most, varying)
    uncompiled = np.asarray(~compiling_seconds(joined, ranks).any(axis=1))
    if structure.alike:
        return Loads(most, work=_varying_work(joined, attribution, uncompiled))
    return Loads(most, work=_varying_work_of_stages(joined, structure, uncompiled))


def without_load(joined: Joined, own: Floats) -> Floats:
    """(T, R) own work as it would be with equal loads in each step, where loads explain it."""
    line = _line(joined, own)
    if line is None:
        return own
    return np.maximum(own - line.slope * _beyond_mean(line.load), 0)


def _loads(joined: Joined) -> Iterator[tuple[str, Floats]]:
    """Unit and (T, R) loads; in unknown steps, all ranks count as equal. None of those that
    are the same everywhere: they explain nothing."""
    for unit, load in (("tokens", joined.tokens), ("samples", joined.samples)):
        if is_constant(load):
            continue
        known = np.asarray(~np.isnan(load).any(axis=1))
        counted = load[known]
        if known.mean() >= COUNTED and counted.min() < counted.max():
            usual = float(np.mean(counted))
            yield unit, np.where(known[:, None], load, usual)


def _beyond_mean(values: Floats) -> Floats:
    return np.asarray(values - values.mean(axis=1, keepdims=True))


def _evened(values: Floats, known: npt.NDArray[np.bool_]) -> Floats:
    """The known steps, without the mean of each step and then of each rank."""
    some: Floats = _beyond_mean(values)[known]
    some -= some.mean(axis=0)
    return some


def _uneven(
    joined: Joined,
    attribution: Attribution,
    stragglers: Sequence[Straggler],
    unit: str,
    load: Floats,
) -> Uneven | None:
    """The stragglers whose load explains most of their excess."""
    uneven = []
    if not stragglers:
        return None
    others = median_of_others(load)
    for straggler in stragglers:
        column = joined.ranks.index(straggler.rank)
        start = (
            0 if straggler.since is None else int(np.searchsorted(joined.steps, straggler.since))
        )
        mine, usual = float(load[start:, column].mean()), float(others[start:, column].mean())
        if mine >= MORE * usual:
            explained = straggler.own_of_others * (mine / usual - 1) / max(straggler.excess, 1e-12)
            uneven.append((straggler, mine, usual, min(1.0, explained)))
    uneven = [straggler for straggler in uneven if straggler[3] >= EXPLAINS]
    if not uneven:
        return None
    culprits, loads, usual_loads, shares = zip(*uneven, strict=True)
    a_unit = np.mean([straggler.excess / (m - u) for straggler, m, u, _ in uneven])
    level = saved_if_removed(
        attribution.own, attribution.communication, a_unit * _beyond_mean(load)
    )
    return Uneven(
        ranks=tuple(culprit.rank for culprit in culprits),
        unit=unit,
        load=float(np.mean(loads)),
        load_of_others=float(np.mean(usual_loads)),
        explained=float(np.mean(shares)),
        saved=sum(culprit.saved for culprit in culprits),
        saved_level=level,
    )


def _varying(joined: Joined, attribution: Attribution) -> Varying | None:
    line = _line(joined, attribution.own)
    if line is None:
        return None
    load, own = line.load, attribution.own
    saved = saved_if_removed(own, attribution.communication, line.slope * _beyond_mean(load))
    known = np.asarray(~np.isnan(own).any(axis=1))
    most = load == load.max(axis=1, keepdims=True)
    slowest = np.where(known[:, None], own, 0).argmax(axis=1)
    hits = most[np.arange(len(load)), slowest] & ~most.all(axis=1)
    return Varying(
        unit=line.unit,
        most=float(np.mean(load.max(axis=1) / load.mean(axis=1))),
        correlation=line.correlation,
        slowest_has_most=float(hits[known].mean()),
        seconds=saved * joined.step_seconds,
        saved=saved,
    )


def _varying_work(
    joined: Joined, attribution: Attribution, uncompiled: _Steps
) -> VaryingWork | None:
    own = attribution.own
    columns = reference(own.shape[1])
    passes = [joined.phases[:, columns, phase] for phase in (FORWARD, BACKWARD)]
    unmeasured = np.isnan(own).any(axis=1) | np.isnan(passes[0] + passes[1]).any(axis=1)
    measured = np.asarray(~unmeasured) & uncompiled
    both = _moving_together(joined, columns, own[:, columns], passes, measured)
    if both is None:
        return None
    work, communication = own[measured], attribution.communication[measured]
    saved = saved_if_removed(work, communication, _evened(own, measured))
    saved *= float(joined.wall[uncompiled].sum() / joined.wall.sum())
    slowest = np.bincount(work.argmax(axis=1), minlength=work.shape[1])
    return VaryingWork(
        longest=float(np.mean(work.max(axis=1) / work.mean(axis=1))),
        both_passes=both,
        slowest_most_often=float(slowest.max() / len(work)),
        seconds=saved * joined.step_seconds,
        saved=saved,
    )


def _varying_work_of_stages(
    joined: Joined, structure: Structure, uncompiled: _Steps
) -> VaryingWork | None:
    """The same in pipelines, whose ranks' work is compared with their usual shares of it."""
    pipelines = _pipelines(joined, structure)
    passes = [joined.phases[:, :, phase] for phase in (FORWARD, BACKWARD)]
    work = np.asarray(sum(np.nan_to_num(joined.phases[:, :, phase]) for phase in WORK))
    measured = np.asarray(~np.isnan(passes[0] + passes[1]).any(axis=1)) & uncompiled
    if not pipelines or np.count_nonzero(measured) < LEAST_MEASURED:
        return None
    levels, *levels_of_passes = (np.mean(seconds[measured], axis=0) for seconds in (work, *passes))
    if min(map(np.min, levels_of_passes)) <= 0:
        return None
    shares = [seconds / usual for seconds, usual in zip(passes, levels_of_passes, strict=True)]
    columns = np.arange(len(joined.ranks))
    both = _moving_together(joined, columns, work / levels, shares, measured)
    if both is None:
        return None
    work = work[measured]
    even = work.sum(axis=1, keepdims=True) * levels / levels.sum()
    now, then = (
        np.max([pipeline_seconds(each[:, own], structure.passes or 1) for own in pipelines], axis=0)
        for each in (work, even)
    )
    saved = min(1.0, max(0.0, float(np.mean(now - then)) / joined.step_seconds))
    saved *= float(np.mean(uncompiled))
    slowest = np.bincount((work / even).argmax(axis=1), minlength=work.shape[1])
    return VaryingWork(
        longest=float(np.mean((work / even).max(axis=1))),
        both_passes=both,
        slowest_most_often=float(slowest.max() / len(work)),
        seconds=saved * joined.step_seconds,
        saved=saved,
        in_stages=True,
    )


def _pipelines(joined: Joined, structure: Structure) -> list[list[int]]:
    """The columns of each pipeline, by stage; empty: unknown. In both usual meshes, the ranks of a
    stage stand in the order of their pipelines."""
    if len({len(stage) for stage in structure.stages}) != 1:
        return []
    if any(rank not in joined.ranks for stage in structure.stages for rank in stage):
        return []
    return [
        [joined.ranks.index(rank) for rank in ranks]
        for ranks in zip(*structure.stages, strict=True)
    ]


def _moving_together(
    joined: Joined,
    columns: Ints,
    work: Floats,
    passes: Sequence[Floats],
    measured: _Steps,
) -> float | None:
    """Correlation of forward and backward passes, if the work of the ranks in these columns differs
    between ranks and steps as data makes it differ; None: it does not."""
    if np.count_nonzero(measured) < LEAST_MEASURED:
        return None
    forward, backward = (_evened(seconds, measured) for seconds in passes)
    beyond = _evened(work, measured)
    both = _correlation(forward, backward)
    sureness = both * math.sqrt((beyond.size - 2) / max(1 - both**2, 1e-12))
    if both < BOTH_PASSES or sureness < SURE or _correlation(beyond[1:], beyond[:-1]) >= LASTS:
        return None
    if joined.is_device_timed:
        return both
    running = joined.running[:, columns]
    if np.isnan(running[measured]).any():
        return None
    return both if _correlation(beyond, _evened(running, measured)) >= COMPUTED else None


def _correlation(a: Floats, b: Floats) -> float:
    """Correlation of two sets of values around 0, whose extremes are clipped."""
    a, b = (np.clip(values, *np.quantile(values, (EXTREMES, 1 - EXTREMES))) for values in (a, b))
    spread = float(a.std() * b.std())
    return float(np.mean(a * b)) / spread if spread > 0 else 0.0


def _line(joined: Joined, own: Floats) -> _Line | None:
    """How work follows load over steps and ranks, each without its own mean; None: it does not.
    The unit that goes best with it counts."""
    known = np.asarray(~np.isnan(own).any(axis=1))
    stages = []
    for unit, load in _loads(joined):
        mean = float(load.mean())
        x = _evened(load, known)
        if len(x) < 3 or x.std() < VARIES * mean:
            continue
        y = _evened(own, known)
        np.clip(y, *np.quantile(y, (EXTREMES, 1 - EXTREMES)), out=y)
        if y.std() == 0:
            continue
        correlation = float(np.mean(x * y) / (x.std() * y.std()))
        freedom = len(x) * (x.shape[1] - 1) - 2
        sureness = correlation * math.sqrt(freedom / max(1 - correlation**2, 1e-12))
        if sureness < SURE or correlation < TOGETHER:
            continue
        slope = min(float(np.sum(x * y) / np.sum(x * x)), float(own[known].mean()) / mean)
        stages.append(_Line(unit, load, slope, correlation))
    return max(stages, key=lambda line: line.correlation, default=None)
