"""Which rank works while the others wait, by samples; no rank if they do not decide it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from mgpu_doctor.analysis.stacks.stack_sampling import (
    SampledStraggler,
    Work,
    find_sampled_straggler,
)
from tests.support import job_snapshots
from tests.support.job_snapshots import LOOP, ProcessState, SnapshotSeries, collective
from tests.support.seeds import few_or_sweep

COUNT = 24
WORK = (*LOOP, "prepare util.py:3")
FORWARD = (*LOOP, "Net.forward model.py:4")
DATA = (*job_snapshots.LOADING[:6], "fetch torch/utils/data/_utils/fetch.py:54", "get data.py:3")


def rank(
    share: float,
    *,
    calls: Sequence[str] = WORK,
    waits: Sequence[str] = job_snapshots.BACKWARD,
    seed: int = 0,
    count: int = COUNT,
    step: float = 0.01,
) -> list[ProcessState]:
    """A rank that works in a share of the looks, at random, and waits in the others."""
    chance = random.Random(seed)
    return [
        ProcessState(calls, cpu=at * step, active=True, gil=True, syscall=None)
        if chance.random() < share
        else ProcessState(waits, cpu=at * step)
        for at in range(count)
    ]


def job(*ranks: Sequence[ProcessState], count: int = COUNT) -> SampledStraggler | None:
    scene = SnapshotSeries(dict(enumerate(ranks)), every=0.2, count=count)
    return find_sampled_straggler(scene.snapshots())


def test_the_rank_that_works_while_the_others_wait_is_named_with_its_line() -> None:
    found = job(rank(0.1, seed=1), rank(0.9, seed=2), rank(0.1, seed=3))
    assert found is not None
    assert (found.rank, found.kind, found.function, found.line) == (1, Work.OTHER, "prepare", 3)
    assert found.file.endswith("/util.py")
    assert found.operation == "backward"
    assert found.own > 0.7 > found.others


@pytest.mark.parametrize(
    ("calls", "kind"), [(WORK, Work.OTHER), (FORWARD, Work.COMPUTE), (DATA, Work.INPUT)]
)
def test_what_it_works_at(calls: Sequence[str], kind: Work) -> None:
    found = job(rank(0.1, seed=1), rank(0.9, calls=calls, seed=2))
    assert found is not None
    assert found.kind is kind


def test_a_rank_that_waits_for_its_loader_is_late_with_its_input() -> None:
    late = [
        ProcessState(job_snapshots.LOADING if at % 8 else collective(), cpu=at * 0.01)
        for at in range(COUNT)
    ]
    found = job(rank(0.1, seed=1), late)
    assert found is not None
    assert (found.rank, found.kind) == (1, Work.INPUT)


def test_one_long_step_is_not_many() -> None:
    stands = [ProcessState(collective())] * COUNT
    assert job(stands, rank(1.0), stands) is None


def test_a_rank_that_never_runs_while_the_others_take_steps_is_not_waited_for() -> None:
    stuck = [ProcessState((*LOOP, "f util.py:3"), cpu=1.0)] * COUNT
    assert job(rank(0.4, seed=1), stuck) is None
    slow = [ProcessState((*LOOP, "f util.py:3"), cpu=at * 0.001) for at in range(COUNT)]
    found = job(rank(0.4, seed=1), slow)
    assert found is not None
    assert found.rank == 1


def test_few_looks_or_little_excess_decide_nothing() -> None:
    assert job(rank(0.1, count=8), rank(0.9, count=8), count=8) is None
    assert job(rank(0.2, seed=1), rank(0.45, seed=2), rank(0.2, seed=3)) is None
    assert job(rank(0.8, seed=1), rank(0.95, seed=2)) is None


def test_old_looks_are_of_another_time() -> None:
    scene = SnapshotSeries({0: rank(0.1, seed=1), 1: rank(0.9, seed=2)}, every=60.0, count=COUNT)
    assert find_sampled_straggler(scene.snapshots()) is None


def test_in_a_pipeline_each_rank_rightly_does_something_else() -> None:
    receives = collective("recv", 52)
    assert job(rank(0.1, waits=receives, seed=1), rank(0.95, waits=receives, seed=2)) is None


def test_a_job_that_starts_ends_or_loses_ranks_is_not_compared() -> None:
    starts = [ProcessState(job_snapshots.IMPORTING, cpu=1.0), *rank(0.9, seed=2)[1:]]
    assert job(rank(0.1, seed=1), starts) is None
    dies = [*rank(0.9, seed=2)[:-1], ProcessState(state="Z")]
    assert job(rank(0.1, seed=1), dies) is None
    assert job(rank(0.9)) is None


@few_or_sweep(10, 25)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_work_alike_give_no_alarm(share: float, ranks: int, seeds: range) -> None:
    alarms = [
        job(*(rank(share, seed=1000 * seed + number) for number in range(ranks))) for seed in seeds
    ]
    assert not any(alarms)
