"""All treatments, by name. They were tried on CPUs; none has been tried on a GPU yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mgpu_doctor.advice import (
    compute_treatments,
    data_treatments,
    exchange_treatments,
    host_treatments,
)
from mgpu_doctor.advice.treatment import Situation, Treatment, Value

_TREATMENTS: tuple[Treatment, ...] = (
    *data_treatments.TREATMENTS,
    *exchange_treatments.TREATMENTS,
    *compute_treatments.TREATMENTS,
    *host_treatments.TREATMENTS,
)
TREATMENTS: Mapping[str, Treatment] = {treatment.name: treatment for treatment in _TREATMENTS}
"""By name, in the order in which they are listed."""


def find_by_fix(fix_id: str, situation: Situation) -> Treatment | None:
    """The treatment that applies a finding's fix and fits the job; None: there is none."""
    for treatment in _TREATMENTS:
        if fix_id in treatment.fixes and not isinstance(treatment.find_value(situation), str):
            return treatment
    return None


def find_by_code(code: str) -> list[Treatment]:
    """The treatments that apply fixes of a finding."""
    return [treatment for treatment in _TREATMENTS if code in treatment.codes]


def split_by_way(
    values: Mapping[str, Value],
) -> tuple[dict[str, Value], dict[str, str]]:
    """The values that the probe applies, and the environment variables to set."""
    chosen = {name: TREATMENTS[name] for name in values}
    patches = {name: values[name] for name, each in chosen.items() if each.variable is None}
    variables = {
        each.variable: each.setting.replace("{value}", str(values[name]))
        for name, each in chosen.items()
        if each.variable is not None
    }
    return patches, variables


def check_values(values: Iterable[tuple[str, object]]) -> dict[str, Value]:
    """Values of a file, checked. Raises ValueError with one sentence."""
    checked: dict[str, Value] = {}
    for name, value in values:
        if name not in TREATMENTS:
            raise ValueError(f"there is no treatment {name!r}: see `mgpu-doctor treat --list`.")
        checked[name] = TREATMENTS[name].check_value(value)
    return checked


def describe_values(values: Mapping[str, Value]) -> str:
    """`gc-freeze`, `loader-workers=2`, several joined by ` + `."""
    return " + ".join(
        name if value is True else f"{name}={value}" for name, value in values.items()
    )
