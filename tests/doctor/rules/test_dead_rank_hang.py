"""hang-rank-dead: a rank has ended and the others wait for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.case.model import Case, Now, Outcome, Rank, State
from mgpu_doctor.findings import Severity
from tests.support.failure_cases import (
    AT,
    dead,
    error,
    failed_job,
    find,
    rank,
    secondary_failure,
    step_records,
    waiting,
)


def live(ranks: list[Rank], seconds: float = 42.0) -> Case:
    """A job that still runs, seen so many seconds after the death."""
    case = failed_job(ranks, outcome=Outcome.RUNNING, exit_code=None)
    return replace(case, observed=AT + seconds)


def test_the_dead_rank_and_those_that_wait_are_one_finding() -> None:
    (finding,) = find(live([waiting(0), waiting(1), dead(2, signal=9), waiting(3)]))
    assert finding.code == "hang-rank-dead"
    assert finding.severity is Severity.CRITICAL
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1, 3)
    assert "42 s" in finding.title
    assert "SIGKILL" in finding.cause
    assert "all_reduce train.py:22" in finding.cause
    assert any("kill 1000 1001 1003" in fix.how for fix in finding.fixes)


def test_the_cause_says_why_it_died() -> None:
    (finding,) = find(live([waiting(0), dead(1, exit_code=1, error=error())]))
    assert "ValueError at train.py:87: bad sample" in finding.cause
    assert any("train.py:87" in fix.summary for fix in finding.fixes)


def test_a_survivor_that_failed_too_is_not_the_culprit() -> None:
    (finding,) = find(live([secondary_failure(0), waiting(1), dead(2, signal=11)]))
    assert finding.code == "hang-rank-dead"
    assert [culprit.rank for culprit in finding.culprits] == [2]


def test_a_rank_that_vanished_is_reported_with_little_confidence() -> None:
    (finding,) = find(live([waiting(0), dead(1, None)]))
    assert finding.code == "hang-rank-dead"
    assert finding.confidence <= 0.6


@pytest.mark.parametrize(
    ("step_seconds", "waited", "expected"),
    [
        (0.02, 9.0, "failed-killed"),
        (0.02, 11.0, "hang-rank-dead"),
        (5.0, 49.0, "failed-killed"),
        (5.0, 51.0, "hang-rank-dead"),
    ],
)
def test_a_wait_counts_from_ten_seconds_and_ten_steps(
    step_seconds: float, waited: float, expected: str
) -> None:
    steps = step_records(seconds=step_seconds)
    case = live([waiting(0, steps=steps), dead(1, signal=9, steps=steps)], waited)
    (finding,) = find(case)
    assert finding.code == expected


def test_a_rank_that_finished_early_is_named() -> None:
    gone = rank(1, state=State.EXITED, exit_code=0, ended=AT, steps=step_records(30))
    (finding,) = find(live([waiting(0), gone]))
    assert finding.code == "hang-rank-dead"
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.fixes[0].id == "even-batches"


def test_a_hang_is_reported_after_the_job_was_ended_by_hand() -> None:
    stood = [dead(n, AT + 60, signal=15, now=Now("wait", AT, 42, None, None)) for n in (0, 1)]
    case = failed_job([*stood, dead(2, signal=9)], outcome=Outcome.KILLED, exit_code=None)
    (finding,) = find(case)
    assert finding.code == "hang-rank-dead"
    assert [culprit.rank for culprit in finding.culprits] == [2]
    assert finding.victims == (0, 1)


def test_a_launcher_that_noticed_the_death_leaves_no_hang() -> None:
    stood = [dead(n, AT + 30, signal=9, now=Now("wait", AT, 42, None, None)) for n in (0, 1)]
    (finding,) = find(failed_job([*stood, dead(2, signal=9)]))
    assert finding.code == "failed-killed"
    assert [culprit.rank for culprit in finding.culprits] == [2]


def test_waiting_alone_is_no_hang() -> None:
    assert find(live([waiting(0), waiting(1), rank(2)])) == []


def test_a_rank_that_works_on_after_the_others_left_is_no_hang() -> None:
    saving = rank(0, now=Now("checkpoint", AT, 42, None, None))
    gone = rank(1, state=State.EXITED, exit_code=0, ended=AT)
    assert find(live([saving, gone])) == []
