"""Findings over time: each appears, is updated, and resolves when its fault goes away."""

from __future__ import annotations

from mgpu_doctor.findings import Finding, Followed

MOST_PAST = 200
"""Resolved findings that are remembered, the newest."""
MOST_RECENT = 5
"""Those among them that are shown beside what is there now."""

Key = tuple[str, tuple[int | None, ...]]


def update_history(
    before: tuple[Followed, ...], findings: tuple[Finding, ...], at: float, *, over: bool = False
) -> tuple[Followed, ...]:
    """What is there now, in the order of `found`, then what has resolved itself, the newest
    first. The same code of the same ranks is the same finding, until it resolves itself: it then
    is one of the past, and may come back as a new one. When the job is `over`, nothing resolves
    itself any more: what is gone then only goes by another name, or was about what comes next."""
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
    """What has resolved itself of late: each finding once, and none that is there again."""
    there = {_key(entry.finding) for entry in followed if entry.is_open}
    last: dict[Key, Followed] = {}
    for entry in followed:
        if not entry.is_open and _key(entry.finding) not in there:
            last.setdefault(_key(entry.finding), entry)
    return tuple(last.values())[:MOST_RECENT]


def _key(finding: Finding) -> Key:
    return finding.code, tuple(culprit.rank for culprit in finding.culprits)
