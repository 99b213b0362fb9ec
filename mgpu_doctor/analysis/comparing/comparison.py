"""Several runs side by side: everything that a view of them shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from mgpu_doctor.analysis.comparing.compared_run import (
    MODEL,
    PROGRAM,
    TRAINERS,
    Run,
    differing,
    measured,
    target_of,
)
from mgpu_doctor.analysis.comparing.run_pairs import Pair, pair, unit_of
from mgpu_doctor.analysis.comparing.scaling import (
    Best,
    Law,
    Scaling,
    best,
    growth_of,
    law_of,
    scaling,
)
from mgpu_doctor.case.model import Case

NOT_COUNTED = ("save-to", "replicas")
"""Options that make no difference, or that follow from the number of ranks."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A run that could not be compared, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """The law of the runs at these places, which differ in their ranks alone; or why there is
    none."""

    places: tuple[int, ...]
    law: Law | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """`pairs`: each later run against the first. `laws`: one for each group of runs that differ in
    their ranks alone and have several counts."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]
    unit: str
    differs: tuple[str, ...]
    """Settings that are not the same in all runs."""
    work_differs: tuple[str, ...]
    """Those of them that say that the runs do different work: `model`, `program`."""
    pairs: tuple[Pair, ...]
    scaling: Scaling
    best: Best | None
    laws: tuple[Fitted, ...]
    spread: float | None
    """The most that two runs of equal settings differ by, as a share: the noise between runs, of
    which no single run knows. None: no two are equal."""
    loss: float | None = None
    """A loss that all runs reach; None: a run has no loss, or they train different models."""


def compare(named: Iterable[tuple[str, Case | str]]) -> Comparison | tuple[LeftOut, ...]:
    """The runs by name, in this order, one in memory at a time; a text in place of a case says why
    it could not be read. Why none can be compared, where fewer than two can."""
    runs, left_out = [], []
    for name, case in named:
        run = case if isinstance(case, str) else measured(name, case)
        if isinstance(run, str):
            left_out.append(LeftOut(name, run))
        else:
            runs.append(run)
    return compared(runs, left_out) if len(runs) > 1 else tuple(left_out)


def compared(runs: Sequence[Run], left_out: Sequence[LeftOut] = ()) -> Comparison:
    """Two runs or more."""
    unit = unit_of(runs)
    names = differing([run.settings for run in runs])
    return Comparison(
        runs=tuple(runs),
        left_out=tuple(left_out),
        unit=unit,
        differs=tuple(name for name in names if name not in NOT_COUNTED),
        work_differs=_different_work(runs, names),
        pairs=tuple(pair(runs, 0, place, unit) for place in range(1, len(runs))),
        scaling=scaling(runs, unit),
        best=best(runs, unit),
        laws=tuple(_laws(runs, unit)),
        spread=_spread(runs, unit),
        loss=None if MODEL in names else target_of([run.losses for run in runs]),
    )


def _different_work(runs: Sequence[Run], differs: Iterable[str]) -> tuple[str, ...]:
    """A model that is not set may be the same one. The built-in trainers are different programs
    that train the same models."""
    programs = {run.settings.get(PROGRAM, "") for run in runs}
    same = {
        MODEL: not all(MODEL in run.settings for run in runs),
        PROGRAM: all(program.startswith(TRAINERS) for program in programs),
    }
    return tuple(name for name, is_same in same.items() if name in differs and not is_same)


def _kind(run: Run) -> tuple[tuple[str, str], ...]:
    """All settings that make a difference."""
    return tuple(sorted(item for item in run.settings.items() if item[0] not in NOT_COUNTED))


def _laws(runs: Sequence[Run], unit: str) -> list[Fitted]:
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(_kind(run), []).append(place)
    laws = []
    for places in groups.values():
        alike = [runs[place] for place in places]
        if len({run.ranks for run in alike}) < 2:
            continue
        law = law_of(alike, growth_of(alike, unit))
        fitted = law if isinstance(law, Law) else None
        laws.append(Fitted(tuple(places), fitted, law if isinstance(law, str) else None))
    return laws


def _spread(runs: Sequence[Run], unit: str) -> float | None:
    values = [
        abs(math.log(second / first))
        for run, other in combinations(runs, 2)
        if (_kind(run), run.ranks) == (_kind(other), other.ranks)
        and (first := run.rate(unit))
        and (second := other.rate(unit))
    ]
    return math.expm1(max(values)) if values else None
