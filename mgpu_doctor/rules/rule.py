"""What a rule is. Adding one means adding one object in one file, with its text and two tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # settings and texts of rules are wanted where nothing is examined
    from mgpu_doctor.analysis.measures import Measures
    from mgpu_doctor.findings import Finding

Limits = Mapping[str, float]
"""A rule's limits by name, as the user has set them or by default."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A threshold that users may set in `[tool.mgpu-doctor.CODE]`."""

    name: str
    default: float
    unit: str
    """`fraction`, `s`, `steps`, `samples`, …"""
    meaning: str
    """What lies beyond it, and where the default comes from: a measurement, a paper, a vendor."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the catalogue: what `explain CODE` prints and what `diagnose` runs.

    `examine(measures, limits)` is pure: no I/O, no clock. It abstains (yields nothing) where the
    evidence does not decide. `needs` names the facts without which the rule cannot speak: fields
    of `Measures`; where one is None, `diagnose` lists the missing probe under `unexamined`.
    """

    code: str
    family: str
    summary: str
    """What is wrong, in one sentence."""
    measured: str
    """How it is seen."""
    thresholds: str
    """What decides beside the limits, each with its source."""
    fixes: str
    """What to do, in a few lines."""
    examine: Callable[[Measures, Limits], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    """Codes that this finding makes redundant for the same culprit (one cause, one finding)."""
    also: tuple[Callable[[Measures, Limits], Iterable[Finding]], ...] = ()
    """Other ways to see the same, from other facts: asked also where what `examine` needs is not
    there."""
    limits: tuple[Limit, ...] = ()
    unverified: str = ""
    """What nobody has seen it do yet, e.g. on a GPU; empty: seen on real jobs."""

    @property
    def defaults(self) -> dict[str, float]:
        """The limits by name."""
        return {limit.name: limit.default for limit in self.limits}
