"""Which processes are attempts of one job, which are independent ranks, and which ran beside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.case.attempts import Attempts, are_independent, list_beside, split_attempts
from mgpu_doctor.case.model import Rank, State
from mgpu_doctor.recording.box import STEP_DTYPE
from tests.support.synthetic import make_rank


def lone(
    pid: int,
    started: float,
    ended: float | None = None,
    *,
    attempt: int = 0,
    last_step: float | None = None,
    state: State = State.EXITED,
) -> Rank:
    """A process that trained without a process group; no `ended`: it still runs."""
    steps = np.zeros(0 if last_step is None else 1, dtype=STEP_DTYPE)
    steps["end_ns"] = round((last_step or 0.0) * 1e9)
    return make_rank(
        0,
        steps,
        world_size=1,
        pid=pid,
        started=started,
        ended=ended,
        attempt=attempt,
        state=State.RUNNING if ended is None and state is State.EXITED else state,
    )


def member(number: int, started: float, ended: float | None, pid: int, world: int = 2) -> Rank:
    """A rank of a process group."""
    steps = np.zeros(0, dtype=STEP_DTYPE)
    state = State.RUNNING if ended is None else State.EXITED
    return make_rank(
        number, steps, world_size=world, pid=pid, started=started, ended=ended, state=state
    )


def numbers_of(ranks: tuple[Rank, ...]) -> list[tuple[int | None, int | None]]:
    return [(rank.rank, rank.pid) for rank in ranks]


def split(*ranks: Rank) -> Attempts:
    """The attempts, whatever the order in which boxes are read."""
    attempts = split_attempts(ranks)
    assert split_attempts(ranks[::-1]) == attempts
    return attempts


def test_processes_that_train_at_the_same_time_are_numbered_by_their_start() -> None:
    attempts = split(lone(12, 100.0, 200.0), lone(11, 101.0, 190.0), lone(13, 150.0))
    assert numbers_of(attempts.last) == [(0, 12), (1, 11), (2, 13)]
    assert attempts.earlier == attempts.beside == ()
    assert are_independent(attempts.last)


def test_a_process_that_began_after_the_end_of_another_is_a_later_attempt() -> None:
    attempts = split(lone(11, 100.0, 200.0), lone(12, 203.0))
    assert numbers_of(attempts.last) == [(0, 12)]
    assert numbers_of(attempts.earlier) == [(0, 11)]
    assert not are_independent(attempts.last)


def test_processes_that_were_started_together_again_replace_all_of_the_earlier() -> None:
    attempts = split(
        lone(11, 100.0, 200.0), lone(12, 101.0, 199.0), lone(21, 210.0), lone(22, 211.0)
    )
    assert numbers_of(attempts.last) == [(0, 21), (1, 22)]
    assert {rank.pid for rank in attempts.earlier} == {11, 12}


def test_a_process_that_replaces_one_of_several_is_shown_with_all_of_them() -> None:
    attempts = split(lone(11, 100.0, 300.0), lone(12, 101.0, 150.0), lone(13, 160.0, 300.0))
    assert numbers_of(attempts.last) == [(0, 11), (1, 12), (2, 13)]


def test_an_end_that_was_seen_late_does_not_make_a_restart_two_ranks() -> None:
    attempts = split(lone(11, 100.0, 200.5, last_step=199.0), lone(12, 200.0))
    assert numbers_of(attempts.last) == [(0, 12)]


def test_a_step_after_the_start_of_another_process_shows_that_both_ran() -> None:
    attempts = split(lone(11, 100.0, 102.0, last_step=101.9), lone(12, 101.0, 102.5))
    assert numbers_of(attempts.last) == [(0, 11), (1, 12)]


@pytest.mark.parametrize(("last_step", "count"), [(150.5, 2), (149.5, 1)])
def test_of_a_process_whose_end_was_not_seen_its_own_record_counts(
    last_step: float, count: int
) -> None:
    vanished = lone(11, 100.0, state=State.DEAD, last_step=last_step)
    assert len(split(vanished, lone(12, 150.0)).last) == count


def test_a_process_that_had_started_but_not_trained_when_another_ended_ran_beside_it() -> None:
    slow_to_load = replace(lone(12, 150.0), process_started=100.5)
    attempts = split(lone(11, 110.0, 140.0), slow_to_load)
    assert numbers_of(attempts.last) == [(0, 12), (1, 11)]


def test_restarts_that_the_launcher_counts_are_attempts() -> None:
    attempts = split(lone(11, 100.0, 200.0), lone(12, 190.0, attempt=1))
    assert numbers_of(attempts.last) == [(0, 12)]
    assert numbers_of(attempts.earlier) == [(0, 11)]


def test_a_process_beside_a_group_is_no_attempt_of_it_and_is_named() -> None:
    group = member(0, 100.0, None, 21), member(1, 101.0, None, 22)
    attempts = split(*group, lone(31, 120.0))
    assert numbers_of(attempts.last) == [(0, 21), (1, 22)]
    assert attempts.earlier == ()
    assert numbers_of(attempts.beside) == [(0, 31)]
    (gap,) = list_beside(attempts)
    assert gap.reason.startswith("31 trained at the same time")


def test_a_group_that_follows_a_single_process_replaces_it() -> None:
    attempts = split(lone(11, 100.0, 150.0), member(0, 200.0, None, 21), member(1, 201.0, None, 22))
    assert numbers_of(attempts.last) == [(0, 21), (1, 22)]
    assert numbers_of(attempts.earlier) == [(0, 11)]


def test_a_single_process_that_follows_a_group_replaces_it() -> None:
    attempts = split(member(0, 100.0, 150.0, 21), member(1, 101.0, 150.0, 22), lone(31, 200.0))
    assert numbers_of(attempts.last) == [(0, 31)]
    assert {rank.pid for rank in attempts.earlier} == {21, 22}


def test_a_smaller_group_replaces_a_larger_one_and_a_process_beside_it_stays_beside() -> None:
    larger = [member(number, 100.0 + number, 150.0, 21 + number, world=3) for number in range(3)]
    smaller = [member(number, 200.0 + number, None, 41 + number) for number in range(2)]
    attempts = split(*larger, *smaller, lone(51, 120.0, 300.0))
    assert numbers_of(attempts.last) == [(0, 41), (1, 42)]
    assert {rank.pid for rank in attempts.earlier} == {21, 22, 23}
    assert numbers_of(attempts.beside) == [(0, 51)]
