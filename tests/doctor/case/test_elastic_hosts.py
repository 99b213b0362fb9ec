"""Attempts of a job on several hosts, whose launchers each count restarts for themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mgpu_doctor.case.attempts import split_attempts
from mgpu_doctor.case.model import Rank
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.synthetic import make_rank

Start = tuple[int, str, int, float]
"""Rank, host, attempt as its launcher counts, when it started."""
Known = list[tuple[int | None, str, int]]


def split(*started: Start) -> tuple[Known, Known]:
    """Rank, host and attempt of the ranks of the last attempt, and of the earlier ones."""
    steps = np.zeros(0, dtype=STEP_DTYPE)
    attempts = split_attempts(
        [
            make_rank(number, steps, host=host, attempt=attempt, started=at, pid=int(at))
            for number, host, attempt, at in started
        ]
    )
    return list_known(attempts.last), list_known(attempts.earlier)


def list_known(ranks: Sequence[Rank]) -> Known:
    return [(one.rank, one.host, one.attempt) for one in ranks]


def test_a_host_that_replaced_another_begins_to_count_at_0() -> None:
    current, earlier = split(
        (0, "a", 0, 100.0), (1, "b", 0, 103.0), (0, "a", 1, 200.0), (1, "c", 0, 203.0)
    )
    assert current == [(0, "a", 1), (1, "c", 1)]
    assert earlier == [(0, "a", 0), (1, "b", 0)]


def test_a_host_whose_own_ranks_did_not_fail_counts_no_restart() -> None:
    current, earlier = split(
        (0, "a", 0, 100.0), (1, "b", 0, 103.0), (0, "a", 0, 200.0), (1, "b", 1, 203.0)
    )
    assert current == [(0, "a", 1), (1, "b", 1)]
    assert earlier == [(0, "a", 0), (1, "b", 0)]


def test_hosts_that_restart_together_count_alike() -> None:
    starts = [
        (number, host, attempt, 100.0 * attempt + 10 * number)
        for attempt in range(3)
        for number, host in enumerate("aabb")
    ]
    current, earlier = split(*starts)
    assert current == [(0, "a", 2), (1, "a", 2), (2, "b", 2), (3, "b", 2)]
    assert {attempt for _, _, attempt in earlier} == {0, 1}


def test_hosts_that_were_started_by_hand_one_after_another_are_one_attempt() -> None:
    current, earlier = split((0, "a", 0, 100.0), (1, "a", 0, 101.0), (2, "b", 0, 400.0))
    assert current == [(0, "a", 0), (1, "a", 0), (2, "b", 0)]
    assert earlier == []
