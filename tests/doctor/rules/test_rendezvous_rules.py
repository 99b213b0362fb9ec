"""failed-rendezvous: ranks that never joined; ranks that timed out waiting for them are not
blamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mgpu_doctor.case.model import Console, Rank, State
from tests.support.failure_cases import AT, dead, error, failed_job, find, logged_end, rank

GAVE_UP = (
    "wait timeout after 5000ms, keys: /default_pg/0//cpu//0/1",
    "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    "Gloo connectFullMesh failed with timed out connecting",
)


def waiter(number: int, message: str = GAVE_UP[0]) -> Rank:
    raised = replace(error("torch.distributed.DistStoreError", message, 21), at=AT)
    return dead(number, exit_code=1, error=raised)


def absent(number: int) -> Rank:
    return rank(number, state=State.MISSING, pid=None)


@pytest.mark.parametrize("message", GAVE_UP)
def test_the_rank_that_never_joined_is_named_not_the_one_that_waited(message: str) -> None:
    console = Console(ends=(logged_end(rank=1, pid=77, signal=15),))
    (finding,) = find(failed_job([waiter(0, message), absent(1)], console=console))
    assert finding.code == "failed-rendezvous"
    assert [(culprit.rank, culprit.pid) for culprit in finding.culprits] == [(1, 77)]
    assert finding.victims == (0,)
    assert finding.confidence == 0.9


def test_without_a_word_of_the_missing_rank_the_confidence_is_lower() -> None:
    (finding,) = find(failed_job([waiter(0), waiter(1), absent(2), absent(3)]))
    assert [culprit.rank for culprit in finding.culprits] == [2, 3]
    assert finding.confidence < 0.9


def test_where_all_joined_nobody_is_named() -> None:
    (finding,) = find(failed_job([waiter(0), waiter(1)]))
    assert finding.code == "failed-exception"
    assert finding.culprits == ()


def test_a_rank_that_fell_by_itself_explains_why_the_others_waited() -> None:
    (finding,) = find(failed_job([waiter(0), dead(1, exit_code=1, error=error())]))
    assert finding.code == "failed-exception"
    assert [culprit.rank for culprit in finding.culprits] == [1]
