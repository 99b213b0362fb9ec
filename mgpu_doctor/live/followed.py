"""Findings over time: one appears, is updated, and resolves itself when its fault goes away."""

from __future__ import annotations

from mgpu_doctor.findings import Finding, Followed

MOST_RESOLVED = 5
"""Resolved findings that are remembered, the newest."""


def follow(
    before: tuple[Followed, ...], found: tuple[Finding, ...], at: float
) -> tuple[Followed, ...]:
    """What is there now, in the order of `found`, then what has resolved itself, the newest
    first. The same code of the same ranks is the same finding."""
    known = {_key(one.finding): one for one in before}
    now = {_key(finding): finding for finding in found}
    there = tuple(
        Followed(finding, known[key].appeared if key in known and known[key].is_open else at)
        for key, finding in now.items()
    )
    gone = [
        one if one.resolved is not None else Followed(one.finding, one.appeared, at)
        for key, one in known.items()
        if key not in now
    ]
    gone.sort(key=lambda one: -(one.resolved or 0.0))
    return there + tuple(gone[:MOST_RESOLVED])


def _key(finding: Finding) -> tuple[str, tuple[int | None, ...]]:
    return finding.code, tuple(culprit.rank for culprit in finding.culprits)
