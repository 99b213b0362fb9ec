"""Checks on which side of a rule's limit a value counts that equals the limit."""

from __future__ import annotations

import math

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.case.model import Case
from mgpu_doctor.findings import Finding
from mgpu_doctor.rules.catalogue import catalogue


def equal_counts_as(case: Case, code: str, limit: str, value: object) -> str | None:
    """What a measured value that equals the limit counts as: `more` if the rule finds the same as
    with the next lower limit, `less` if the same as with the next higher one. None: the limit
    decides nothing at this value."""
    assert isinstance(value, float | int)
    (rule,) = (rule for rule in catalogue().rules if rule.code == code)
    measures = measure(case)
    near = (math.nextafter(value, -math.inf), value, math.nextafter(value, math.inf))
    below, at, above = (
        [
            _without_limits(finding)
            for finding in rule.apply(measures, {**rule.defaults, limit: limit_value})
        ]
        for limit_value in near
    )
    if below == above:
        return None
    assert at in (below, above)
    return "more" if at == below else "less"


def _without_limits(finding: Finding) -> tuple[object, ...]:
    values = [piece.value for piece in finding.evidence]
    fixes = [(fix.id, fix.how, fix.predicted) for fix in finding.fixes]
    return (finding.severity, finding.confidence, finding.culprits, finding.cause, values, fixes)
