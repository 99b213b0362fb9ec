"""Findings over time: each appears, is updated, and resolves when its fault goes away."""

from __future__ import annotations

from mgpu_doctor.findings import Finding, Followed

MOST_PAST = 200
"""The most resolved findings that are kept, the newest."""
MOST_RECENT = 5
"""The most resolved findings that are shown with the current ones."""

Key = tuple[str, tuple[int | None, ...]]


def update_history(
    before: tuple[Followed, ...], findings: tuple[Finding, ...], at: float, *, over: bool = False
) -> tuple[Followed, ...]:
    """Returns the current findings in the order of `found`, then the resolved ones, newest first.
    Same code and same ranks mean the same finding until it resolves; if it comes back, it is a new
    one. Once the job is `over`, nothing resolves: a finding that disappears then got another name,
    or was a forecast."""
    was = {_key(followed.finding): followed for followed in before if followed.is_open}
    now = {_key(finding): finding for finding in findings}
    there = tuple(
        Followed(finding, was[key].appeared if key in was else at) for key, finding in now.items()
    )
    gone = [
        way if over else Followed(way.finding, way.appeared, at)
        for key, way in was.items()
        if key not in now
    ]
    past = [*gone, *(entry for entry in before if not entry.is_open)]
    past.sort(key=lambda followed: -(followed.resolved or 0.0))
    return there + tuple(past[:MOST_PAST])


def select_recent(followed: tuple[Followed, ...]) -> tuple[Followed, ...]:
    """Returns recently resolved findings: each once, without those that came back."""
    there = {_key(entry.finding) for entry in followed if entry.is_open}
    last: dict[Key, Followed] = {}
    for entry in followed:
        if not entry.is_open and _key(entry.finding) not in there:
            last.setdefault(_key(entry.finding), entry)
    return tuple(last.values())[:MOST_RECENT]


def _key(finding: Finding) -> Key:
    return finding.code, tuple(culprit.rank for culprit in finding.culprits)
