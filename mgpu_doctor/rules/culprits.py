"""Ranks as the culprits of findings, and the severity of what they cost."""

from __future__ import annotations

from collections.abc import Iterable

from mgpu_doctor.analysis.measures import Measures
from mgpu_doctor.case.model import Rank
from mgpu_doctor.findings import Culprit, Severity

WARNING_COST = 0.05
"""Share of total time from which a finding about speed is a warning (the contract's severity)."""


def culprit_of(measures: Measures, rank: int) -> Culprit:
    """The rank with its host, device and pid as far as they are known."""
    known = measures.rank(rank)
    return Culprit(rank) if known is None else culprit_from(known)


def culprit_from(rank: Rank) -> Culprit:
    """The rank as a culprit."""
    return Culprit(rank.rank, host=rank.host, device=rank.device, pid=rank.pid)


def culprits_among(measures: Measures, ranks: Iterable[Rank]) -> tuple[Culprit, ...]:
    """These ranks as culprits, ascending; none if they are all ranks of a job with several."""
    culprits = sorted(ranks, key=lambda rank: rank.rank or 0)
    if len(culprits) == len(measures.case.ranks) > 1:
        return ()
    return tuple(map(culprit_from, culprits))


def severity_of_cost(fraction: float) -> Severity:
    """The severity of something that costs a share of the step time."""
    return Severity.WARNING if fraction >= WARNING_COST else Severity.INFO
