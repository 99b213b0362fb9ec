"""Findings over time: they appear, are updated, are resolved, and may come back."""

from __future__ import annotations

from dataclasses import replace

from mgpu_doctor.findings import Culprit, Finding, Followed, Severity
from mgpu_doctor.live.finding_history import MOST_PAST, MOST_RECENT, select_recent, update_history


def finding(code: str, rank: int | None = None, title: str = "") -> Finding:
    culprits = () if rank is None else (Culprit(rank),)
    return Finding(code, Severity.WARNING, 0.9, title, "", culprits)


SLOW, OTHER = finding("straggler-input", 2), finding("input-bound")


def test_a_finding_appears_is_updated_and_resolves_itself() -> None:
    seen = update_history((), (SLOW,), 10.0)
    assert seen == (Followed(SLOW, 10.0),)
    newer = replace(SLOW, title="worse")
    seen = update_history(seen, (newer,), 20.0)
    assert seen == (Followed(newer, 10.0),)
    seen = update_history(seen, (), 30.0)
    assert seen == (Followed(newer, 10.0, 30.0),)
    assert update_history(seen, (), 40.0) == seen


def test_one_that_comes_back_has_appeared_anew_and_its_past_is_kept() -> None:
    gone = (Followed(SLOW, 10.0, 30.0),)
    seen = update_history(gone, (SLOW,), 50.0)
    assert seen == (Followed(SLOW, 50.0), *gone)
    assert select_recent(seen) == ()
    assert update_history(seen, (), 60.0) == (Followed(SLOW, 50.0, 60.0), *gone)


def test_each_is_reported_once_as_it_was_last() -> None:
    seen = (Followed(SLOW, 50.0, 60.0), Followed(OTHER, 5.0, 40.0), Followed(SLOW, 10.0, 30.0))
    assert select_recent(seen) == seen[:2]


def test_when_the_job_is_over_nothing_resolves_itself_any_more() -> None:
    seen = update_history((Followed(SLOW, 10.0),), (OTHER,), 20.0, over=True)
    assert seen == (Followed(OTHER, 20.0), Followed(SLOW, 10.0))
    assert select_recent(seen) == ()
    assert select_recent(update_history(seen, (OTHER,), 30.0, over=True)) == ()


def test_another_rank_is_another_finding() -> None:
    seen = update_history((Followed(SLOW, 10.0),), (finding("straggler-input", 3),), 20.0)
    assert [(one.finding.culprits[0].rank, one.is_open) for one in seen] == [(3, True), (2, False)]


def test_open_ones_come_first_and_old_ones_are_forgotten() -> None:
    seen: tuple[Followed, ...] = ()
    for rank in range(MOST_PAST + 3):
        seen = update_history(seen, (finding("straggler-input", rank),), float(rank))
    seen = update_history(seen, (OTHER,), 1000.0)
    assert seen[0] == Followed(OTHER, 1000.0)
    past = [one.finding.culprits[0].rank for one in seen[1:]]
    assert past == list(range(MOST_PAST + 2, 2, -1))
    told = [one.finding.culprits[0].rank for one in select_recent(seen)]
    assert told == past[:MOST_RECENT]
