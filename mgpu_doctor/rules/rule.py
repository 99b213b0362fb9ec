"""What a rule is. Adding one means adding one object in one file, with its text and two tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Finding


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the catalogue: what `explain CODE` prints and what `diagnose` runs.

    `examine` is pure: no I/O, no clock. It abstains (yields nothing) where evidence does not
    decide. `needs` names the facts without which the rule cannot speak: fields of `Measures`;
    where one is None, `diagnose` lists the missing probe under `unexamined`.
    """

    code: str
    family: str
    summary: str
    """What is wrong, in one sentence."""
    measured: str
    """How it is seen."""
    thresholds: str
    """Each threshold with its source: a measurement, a paper or a vendor's number."""
    fixes: str
    """What to do, in a few lines."""
    examine: Callable[[Measures], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    """Codes that this finding makes redundant for the same culprit (one cause, one finding)."""
