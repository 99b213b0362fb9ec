"""Findings over time: they appear, are updated, resolve themselves, and may come back."""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.findings import Culprit, Finding, Followed, Severity
from mgpu_doctor.live.followed import MOST_RESOLVED, follow


def finding(code: str, rank: int | None = None, title: str = "") -> Finding:
    culprits = () if rank is None else (Culprit(rank),)
    return Finding(code, Severity.WARNING, 0.9, title, "", culprits)


SLOW, OTHER = finding("straggler-input", 2), finding("input-bound")


def test_a_finding_appears_is_updated_and_resolves_itself() -> None:
    seen = follow((), (SLOW,), 10.0)
    assert seen == (Followed(SLOW, 10.0),)
    newer = replace(SLOW, title="worse")
    seen = follow(seen, (newer,), 20.0)
    assert seen == (Followed(newer, 10.0),)
    seen = follow(seen, (), 30.0)
    assert seen == (Followed(newer, 10.0, 30.0),)
    assert follow(seen, (), 40.0) == seen


def test_one_that_comes_back_has_appeared_anew() -> None:
    gone = (Followed(SLOW, 10.0, 30.0),)
    assert follow(gone, (SLOW,), 50.0) == (Followed(SLOW, 50.0),)


def test_another_rank_is_another_finding() -> None:
    seen = follow((Followed(SLOW, 10.0),), (finding("straggler-input", 3),), 20.0)
    assert [(one.finding.culprits[0].rank, one.is_open) for one in seen] == [(3, True), (2, False)]


def test_open_ones_come_first_and_old_ones_are_forgotten() -> None:
    seen: tuple[Followed, ...] = ()
    for rank in range(MOST_RESOLVED + 3):
        seen = follow(seen, (finding("straggler-input", rank),), float(rank))
    seen = follow(seen, (OTHER,), 100.0)
    assert seen[0] == Followed(OTHER, 100.0)
    assert [one.finding.culprits[0].rank for one in seen[1:]] == [7, 6, 5, 4, 3]
