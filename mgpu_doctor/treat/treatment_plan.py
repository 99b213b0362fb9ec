"""Which treatments a session tries, in which order: those with the largest predicted gain first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mgpu_doctor.advice.treatment import Situation, Value
from mgpu_doctor.advice.treatment_catalogue import TREATMENTS, find_by_fix
from mgpu_doctor.findings import Finding


@dataclass(frozen=True, slots=True)
class Candidate:
    """A treatment to try."""

    name: str
    value: Value
    ratio: float | None
    """Predicted step time with it / without; None: no finding predicts it."""
    codes: tuple[str, ...]
    """Codes of the findings that it would fix."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A treatment that is not tried, and why, a clause."""

    name: str
    reason: str
    fits: bool = False
    """Whether it fits, but is tried only if the user names it."""


def plan_treatments(
    situation: Situation,
    findings: Collection[Finding],
    *,
    only: Collection[str] = (),
    wanted: Mapping[str, Sequence[Value]] | None = None,
) -> tuple[list[Candidate], list[Unfit]]:
    """The treatments to try, in order, and those that do not fit.

    `only`: no others than these; empty: all. `wanted`: values that the user chose, which are tried
    whether they seem to fit or not, and alone if `only` is empty.
    """
    chosen = dict(wanted or {})
    names = {*only, *chosen}
    predicted = _read_predictions(findings, situation)
    candidates: list[Candidate] = []
    unfit: list[Unfit] = []
    for name, treatment in TREATMENTS.items():
        if names and name not in names:
            continue
        values: Sequence[Value | str] = chosen.get(name) or [treatment.find_value(situation)]
        for value in values:
            if isinstance(value, str):
                unfit.append(Unfit(name, value))
            elif treatment.waits_to_be_named and name not in names:
                why = f"it is tried only if you name it: --only {name}"
                unfit.append(Unfit(name, why, fits=True))
            else:
                ratio, codes = predicted.get(name, (None, ()))
                candidates.append(Candidate(name, value, ratio, codes))
    candidates.sort(key=lambda each: (each.ratio is None, each.ratio or 0.0, not each.codes))
    return candidates, unfit


def _read_predictions(
    findings: Collection[Finding], situation: Situation
) -> dict[str, tuple[float | None, tuple[str, ...]]]:
    """Treatment -> the best predicted ratio of the fixes that it applies, and their findings."""
    predicted: dict[str, tuple[float | None, tuple[str, ...]]] = {}
    for finding in findings:
        for fix in finding.fixes:
            treatment = find_by_fix(fix.id, situation)
            if treatment is None:
                continue
            ratio, codes = predicted.get(treatment.name, (None, ()))
            own = fix.predicted.step_time_ratio if fix.predicted is not None else None
            known = [each for each in (ratio, own) if each is not None]
            codes = codes if finding.code in codes else (*codes, finding.code)
            predicted[treatment.name] = min(known, default=None), codes
    return predicted
