"""What every rule needs to write a finding: who the culprit is and how severe a cost is."""

from __future__ import annotations

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.findings import Culprit, Severity

WARNING_COST = 0.05
"""Share of total time from which a finding about speed is a warning (the contract's severity)."""


def culprit_of(measures: Measures, rank: int) -> Culprit:
    """The rank with its host, device and pid as far as they are known."""
    known = measures.rank(rank)
    if known is None:
        return Culprit(rank)
    return Culprit(rank, host=known.host, device=known.device, pid=known.pid)


def severity_of_cost(fraction: float) -> Severity:
    """The severity of something that costs a share of the step time."""
    return Severity.WARNING if fraction >= WARNING_COST else Severity.INFO
