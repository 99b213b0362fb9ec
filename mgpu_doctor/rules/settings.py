"""User settings of rules: other limits, and findings to ignore.

[tool.mgpu-doctor]
ignore = ["lr-unscaled"]

[tool.mgpu-doctor.input-bound]
share = 0.15
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from mgpu_doctor.rules.rule import Limits, Rule

IGNORE = "ignore"


class SettingsError(ValueError):
    """A setting that no rule takes; the message is one clear sentence."""


class Settings(msgspec.Struct, frozen=True):
    """`values`: code -> limit -> value."""

    values: Mapping[str, Mapping[str, float]] = {}
    ignore: frozenset[str] = frozenset()
    forgiving: bool = False
    """If a rule of ours or a part of the analysis raises an exception, the diagnosis goes on
    without it and lists it under `unexamined`, as it always does with rules of other packages."""

    def limits(self, rule: Rule) -> Limits:
        """The rule's limits with what the user has set."""
        own = self.values.get(rule.code)
        return {**rule.defaults, **own} if own else rule.defaults


DEFAULTS = Settings()


def settings_from(table: Mapping[str, object], rules: Iterable[Rule]) -> Settings:
    """The settings that a table `[tool.mgpu-doctor]` holds. Raises `SettingsError`."""
    known = {rule.code: rule for rule in rules}
    ignored = table.get(IGNORE, [])
    if not isinstance(ignored, list) or not all(isinstance(code, str) for code in ignored):
        raise SettingsError(f'{IGNORE} must be a list of codes, as in {IGNORE} = ["lr-unscaled"]')
    for code in ignored:
        _one_of(code, known, "finding")
    values = {code: _limits(code, given, known) for code, given in table.items() if code != IGNORE}
    return Settings(values, frozenset(ignored))


def _limits(code: str, given: object, known: Mapping[str, Rule]) -> dict[str, float]:
    _one_of(code, known, "finding")
    if not isinstance(given, Mapping):
        raise SettingsError(f"{code} must be a table of limits")
    defaults = known[code].defaults
    for name, value in given.items():
        _one_of(name, defaults, f"limit of {code}")
        usable = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not usable or not math.isfinite(value) or value < 0:
            raise SettingsError(f"{code}.{name} must be a number of 0 or more, not {value!r}")
    return {name: float(value) for name, value in given.items()}


def _one_of(name: str, known: Mapping[str, object], what: str) -> None:
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise SettingsError(f"{name!r} is no {what}; {hint}")
