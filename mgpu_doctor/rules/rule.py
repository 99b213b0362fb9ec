"""The `Rule` class: what is wrong, how it is detected and what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:  # settings and texts of rules are needed where nothing is examined
    from mgpu_doctor.analysis.measures import Measures, Need
    from mgpu_doctor.findings import Evidence, Finding, Fix

Limits = Mapping[str, float]
"""A rule's limits by name, as the user has set them or by default."""
Examine = Callable[["Measures", Limits], Iterable["Finding"]]
"""Finds what is wrong. Pure: no I/O, no clock. Yields nothing if the evidence is inconclusive."""


Add = Callable[["Finding", "Measures"], "Addition | None"]
"""What a source adds to a finding of another detector; None: nothing about the same event."""


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
class Addition:
    """What another source shows about the event of a finding."""

    cause: str = ""
    """Further sentences."""
    evidence: tuple[Evidence, ...] = ()
    fixes: tuple[Fix, ...] = ()
    replaces: tuple[str, ...] = ()
    gives_way: bool = False
    """As `Finding.gives_way`."""

    def extend(self, finding: Finding) -> Finding:
        """The finding with all of this."""
        return replace(
            finding,
            cause=" ".join(text for text in (finding.cause, self.cause) if text),
            evidence=(*finding.evidence, *self.evidence),
            fixes=(*finding.fixes, *self.fixes),
            replaces=(*finding.replaces, *self.replaces),
            gives_way=finding.gives_way or self.gives_way,
        )


@dataclass(frozen=True, slots=True)
class Detector:
    """One way to detect a finding, from the facts of one source."""

    examine: Examine | None
    """None: the source only adds to what other detectors find."""
    measured: str = ""
    """How it detects the finding, in words."""
    needs: tuple[Need, ...] = ()
    """The detector runs only if all of these were measured."""
    unless: tuple[Need, ...] = ()
    """The detector does not run if any of these was measured, because they are more reliable."""
    fallback: bool = False
    """The detector runs only if no other detector of the rule found anything."""
    add: Add | None = None
    """Returns an addition to a finding of the rule."""

    def applies_to(self, measures: Measures) -> bool:
        """Whether the measures that it needs are there, and no better ones."""
        return all(map(measures.has, self.needs)) and not any(map(measures.has, self.unless))


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the catalogue: what `explain CODE` prints and what `diagnose` runs.

    Most findings are detected in one way: `examine` reads the measures in `needs`, as `measured`
    explains. If other sources show the same (stacks, traces, the console), each is one of the
    `alternatives`. A detector runs if its own needs are met.
    """

    code: str
    family: str
    summary: str
    """What is wrong, in one sentence."""
    measured: str
    """How `examine` detects it."""
    thresholds: str
    """Thresholds besides `limits`, each with its source."""
    fixes: str
    """What to do, in a few lines."""
    examine: Examine
    needs: tuple[Need, ...] = ()
    """If one of these was not measured, the diagnosis lists under `unexamined` why. The same goes
    for the needs of `alternatives`."""
    alternatives: tuple[Detector, ...] = ()
    replaces: tuple[str, ...] = ()
    """Codes that this finding makes redundant for the same culprit: one cause, one finding."""
    limits: tuple[Limit, ...] = ()
    unverified: str = ""
    """What was never tested on a real job, such as on a GPU; empty if all was."""
    detectors: tuple[Detector, ...] = field(init=False, repr=False, compare=False)
    """All ways to detect the finding; fallbacks last."""
    defaults: Limits = field(init=False, repr=False, compare=False)
    """The limits by name."""

    def __post_init__(self) -> None:
        first = Detector(self.examine, self.measured, self.needs)
        detectors = sorted((first, *self.alternatives), key=lambda detector: detector.fallback)
        object.__setattr__(self, "detectors", tuple(detectors))
        object.__setattr__(self, "defaults", {limit.name: limit.default for limit in self.limits})

    @property
    def how_measured(self) -> str:
        """How all detectors work, as one paragraph."""
        return " ".join(detector.measured for detector in self.detectors if detector.measured)

    def apply(self, measures: Measures, limits: Limits) -> list[Finding]:
        """The findings of its detectors, with the additions of other sources."""
        findings: list[Finding] = []
        for detector in self.detectors:
            if detector.examine is None or not detector.applies_to(measures):
                continue
            if not (detector.fallback and findings):
                findings += detector.examine(measures, limits)
        for detector in self.alternatives if findings else ():
            if detector.add is not None and detector.applies_to(measures):
                additions = [detector.add(finding, measures) for finding in findings]
                pairs = zip(findings, additions, strict=True)
                findings = [each if more is None else more.extend(each) for each, more in pairs]
        return findings

    def list_unmet_needs(self, measures: Measures) -> list[Need]:
        """The missing measures of detectors that no better detector replaced."""
        return [
            need
            for detector in self.detectors
            if not any(map(measures.has, detector.unless))
            for need in detector.needs
            if not measures.has(need)
        ]


class RuleError(ValueError):
    """A rule that cannot run as it is declared; the message is one sentence."""


def check_rule(rule: Rule) -> Rule:
    """The rule, if all measures it names exist and users can set its limits. Raises `RuleError`."""
    from mgpu_doctor.analysis.measures import Need

    measures: tuple[str, ...] = get_args(Need)
    for detector in rule.detectors:
        for name in (*detector.needs, *detector.unless):
            if name not in measures:
                near = difflib.get_close_matches(name, measures, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RuleError(f"{rule.code} needs {name!r}, which is no measure{hint}")
    names = [limit.name for limit in rule.limits]
    for limit in rule.limits:
        if names.count(limit.name) > 1 or not limit.name.isidentifier():
            raise RuleError(f"{rule.code} has no single limit called {limit.name!r}")
        if not 0 <= limit.default < math.inf:
            raise RuleError(f"{rule.code}.{limit.name}: the default must be a number of 0 or more")
    return rule
