"""The figures of a comparison as tables of short texts, the same in every view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mgpu_doctor.analysis.comparing.comparison import Comparison
from mgpu_doctor.analysis.comparing.noise import Level
from mgpu_doctor.analysis.comparing.run import Run
from mgpu_doctor.report import phases, text
from mgpu_doctor.report.compared.words import letter


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    cells: tuple[str, ...]
    needed: int
    """Those with the lowest are left out first where there is no room."""
    number: bool = True


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a run's step goes."""

    letter: str
    standing: str
    memory: str
    seconds: float
    phases: Mapping[str, float]


def columns(compared: Comparison) -> tuple[Column, ...]:
    """A row a run. What is the same in all of them has no column."""
    runs, scaled = compared.runs, compared.scaling.runs
    several = len({run.ranks for run in runs}) > 1
    found = [Column("", tuple(letter(place) for place in range(len(runs))), 9, number=False)]
    if several:
        found.append(Column("ranks", tuple(str(run.ranks) for run in runs), 8))
    if "strategy" in compared.differs:
        names = (text.line(run.settings.get("strategy", text.UNKNOWN)) for run in runs)
        found.append(Column("strategy", tuple(text.cut(name, 14) for name in names), 5, False))
    found.append(Column("usual step", tuple(text.seconds(run.median.seconds) for run in runs), 2))
    found.append(Column("mean step", tuple(_bounded(run.mean) for run in runs), 7))
    rates = tuple(_rate(run, compared.unit) for run in runs)
    found.append(Column(f"{compared.unit}/s", rates, 6))
    speed_ups = tuple(
        text.UNKNOWN if one.speed_up is None else f"{one.speed_up.ratio:.3g}" for one in scaled
    )
    found.append(Column("speed-up", speed_ups, 4))
    if several:
        reached = tuple(text.percent(one.efficiency) for one in scaled)
        found.append(Column("of ideal", reached, 3))
    return tuple(found)


def spent(compared: Comparison) -> tuple[Spent, ...]:
    return tuple(
        Spent(
            letter=letter(place),
            standing=text.percent(run.standing),
            memory=text.UNKNOWN if run.memory is None else text.size(run.memory.most),
            seconds=run.mean.seconds,
            phases=phases.known(run.phases),
        )
        for place, run in enumerate(compared.runs)
    )


def _bounded(level: Level) -> str:
    bound = level.bound
    wide = ""
    if bound is not None:
        wide = f" ±{text.percent(bound)}" if bound < 1 else " ±>100 %"
    return f"{text.seconds(level.seconds)}{wide}"


def _rate(run: Run, unit: str) -> str:
    rate = run.rate(unit)
    return text.UNKNOWN if rate is None else text.number(rate)
