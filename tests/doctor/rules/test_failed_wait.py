"""A collective failed because ranks never reached it, and no stacks were taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mgpu_doctor.case.model import Now, Outcome, Rank, Wait
from mgpu_doctor.diagnosis import diagnose
from tests.support.failure_cases import AT, dead, error, failed_job, lost_peer, step_records
from tests.support.observed_jobs import list_warnings

SECONDS = 6.0
BEHIND, MISMATCH = "hang-rank-behind", "hang-collective-mismatch"


def timed_out(number: int, seconds: float = SECONDS, **changes: Any) -> Rank:
    """A rank that waited in a collective until it raised an exception at AT."""
    wait = Wait(AT - seconds, seconds, "all_reduce /home/u/train.py:22")
    raised = replace(lost_peer(AT), wait=wait)
    now = Now("other", AT, 42, None, None)
    return rank(number, **{"exit_code": 1, "error": raised, "now": now, **changes})


def elsewhere(number: int, phase: str = "input", seconds: float = SECONDS, **changes: Any) -> Rank:
    """A rank that did one thing for so long until the launcher ended it."""
    now = Now(phase, AT + 0.5 - seconds, 42, None, None)
    return rank(number, **{"signal": 15, "now": now, **changes})


def still_waiting(number: int, seconds: float = SECONDS) -> Rank:
    """A rank that waited in a collective until the launcher ended it."""
    return elsewhere(number, "wait", seconds)


def rank(number: int, **changes: Any) -> Rank:
    return dead(number, AT + 0.5, **{"birth": {"clock": "cpu"}, **changes})


def culprits_and_victims(
    *ranks: Rank, **job: Any
) -> list[tuple[list[int | None], tuple[int, ...]]]:
    """Culprits and victims of the findings that name a rank behind."""
    case = failed_job(ranks, **job)
    return [
        ([culprit.rank for culprit in finding.culprits], finding.victims)
        for finding in list_warnings(diagnose(case))
        if finding.code == BEHIND
    ]


def test_the_rank_that_never_came_is_named_with_its_phase() -> None:
    (finding,) = list_warnings(diagnose(failed_job([timed_out(0), elsewhere(1), still_waiting(2)])))
    assert finding.code == BEHIND
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert finding.victims == (0, 2)
    assert finding.since_step == 42
    assert [(row.value, row.baseline) for row in finding.evidence] == [(6.0, None), (6.0, 2.0)]
    assert finding.fixes[0].id == "bound-the-loader"


@pytest.mark.parametrize("phase", ["other", "forward", "optimizer", "checkpoint", "evaluation"])
def test_several_ranks_may_be_behind(phase: str) -> None:
    assert culprits_and_victims(timed_out(0), elsewhere(1), elsewhere(2, phase)) == [([1, 2], (0,))]


def test_a_backward_pass_counts_if_all_other_ranks_waited() -> None:
    assert culprits_and_victims(timed_out(0), elsewhere(1, "backward"), timed_out(2)) == [
        ([1], (0, 2))
    ]
    assert culprits_and_victims(timed_out(0), elsewhere(1, "backward"), elsewhere(2)) == []


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((timed_out(0), timed_out(1)), id="all wait in one collective"),
        pytest.param((timed_out(0, 1.5), elsewhere(1)), id="a connection that was lost at once"),
        pytest.param((timed_out(0), elsewhere(1, seconds=2.0)), id="it moved meanwhile"),
        pytest.param(
            (timed_out(0), elsewhere(1, signal=None, exit_code=1, error=error())),
            id="it failed by itself",
        ),
        pytest.param((timed_out(0), elsewhere(1, signal=9)), id="it was killed"),
        pytest.param(
            (timed_out(0), elsewhere(1, birth={"clock": "host"})), id="its host ran ahead"
        ),
        pytest.param((timed_out(0), elsewhere(1, now=None)), id="what it did is unknown"),
        pytest.param(
            (
                timed_out(0, steps=step_records(seconds=1.0)),
                elsewhere(1, steps=step_records(seconds=1.0)),
            ),
            id="six steps of one second",
        ),
    ],
)
def test_nobody_is_named(ranks: tuple[Rank, ...]) -> None:
    assert culprits_and_victims(*ranks) == []


def waiting_in(number: int, site: str | None) -> Rank:
    """A rank that waited in this call until it raised an exception."""
    raised = replace(lost_peer(AT), wait=Wait(AT - SECONDS, SECONDS, site))
    return timed_out(number, error=raised)


def test_ranks_that_waited_in_different_collectives_are_a_mismatch() -> None:
    here, there = "all_reduce /home/u/train.py:22", "barrier /home/u/train.py:40"
    (finding,) = list_warnings(diagnose(failed_job([waiting_in(0, here), waiting_in(1, there)])))
    assert (finding.code, finding.culprits, finding.victims) == (MISMATCH, (), (0, 1))
    assert {row.where for row in finding.evidence} == {here, there, None}
    ranks = [waiting_in(0, None), waiting_in(1, there), waiting_in(2, None)]
    (finding,) = list_warnings(diagnose(failed_job(ranks)))
    assert [culprit.rank for culprit in finding.culprits] == [1]
    assert (finding.confidence, finding.victims) == (0.6, (0, 2))


def calling(number: int, site: str, **counts: int) -> Rank:
    """A rank that waited in this call; `counts`: how often it made a call at these places."""
    places = {"loop": ("all_reduce", "/home/u/train.py:22"), "end": ("barrier", "/home/u/e.py:40")}
    calls = [
        {"name": places[at][0], "site": places[at][1], "count": count, "seconds": 1.0}
        for at, count in counts.items()
    ]
    name, place = places[site]
    waits = waiting_in(number, f"{name} {place}")
    return rank(
        number,
        exit_code=1,
        error=waits.error,
        now=waits.now,
        birth={"clock": "cpu", "calls": calls},
    )


@pytest.mark.parametrize(
    ("ranks", "culprits"),
    [
        ([calling(0, "loop", loop=6), calling(1, "end", loop=5, end=1)], [1]),
        ([calling(0, "loop", loop=4), calling(1, "end", loop=3, end=1)], [1]),
        ([calling(0, "loop", loop=3), calling(1, "end", loop=2, end=1)], []),
        ([calling(0, "loop", loop=6), calling(1, "end", loop=4, end=1)], []),
        ([calling(0, "loop", loop=6), calling(1, "end", loop=5, end=2)], []),
        ([calling(0, "loop", loop=6, end=1), calling(1, "end", loop=5, end=1)], []),
        ([calling(0, "loop", loop=6)] + [calling(n, "end", loop=5, end=1) for n in (1, 2)], [0]),
    ],
    ids=["at the end", "after 3", "after 2", "not alike", "again", "others did", "of three"],
)
def test_of_two_the_one_whose_call_is_new_is_named(ranks: list[Rank], culprits: list[int]) -> None:
    """All made the other call equally often, at least three times before. Of three, most are
    right."""
    (finding,) = list_warnings(diagnose(failed_job(ranks)))
    assert (finding.code, finding.confidence) == (MISMATCH, 0.6)
    assert [culprit.rank for culprit in finding.culprits] == culprits


def test_a_branch_of_one_rank_may_call_the_same_collective() -> None:
    here, there = "broadcast /home/u/train.py:22", "broadcast /home/u/train.py:24"
    case = failed_job([waiting_in(0, there), waiting_in(1, here), waiting_in(2, here)])
    (finding,) = list_warnings(diagnose(case))
    assert (finding.code, finding.culprits, finding.victims) == (MISMATCH, (), (1, 2, 0))
    assert finding.confidence < 0.5


def test_stages_may_wait_in_different_places() -> None:
    for first, second in (("recv", "send"), ("wait", "all_reduce"), ("recv", "all_reduce")):
        ranks = [waiting_in(0, f"{first} /t.py:9"), waiting_in(1, f"{second} /t.py:20")]
        assert MISMATCH not in [finding.code for finding in diagnose(failed_job(ranks)).findings]


def test_nobody_is_named_while_a_rank_is_missing_or_the_job_was_ended_by_hand() -> None:
    assert culprits_and_victims(timed_out(0), elsewhere(1), world_size=3) == []
    assert culprits_and_victims(timed_out(0), elsewhere(1), outcome=Outcome.KILLED) == []
