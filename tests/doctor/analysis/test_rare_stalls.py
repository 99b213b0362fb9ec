"""Stalls that are too rare for the step records are found in the history of the whole run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import PHASES, WARM_UP

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.stalls.periodic_stalls import Stalls
from mgpu_doctor.case.model import Case, Event
from mgpu_doctor.recording.records import HISTORY_DTYPE
from tests.support.synthetic import Synthetic, synthetic_case

WINDOWS, WINDOW, STEPS = 120, 10.0, 300


def long_run(phase: str, who: tuple[int, ...], *, every: int = 20, seconds: float = 4.0) -> Case:
    """Four healthy ranks whose records hold 120 steps of the 36,000 that they have done."""
    case = synthetic_case(Synthetic())
    ranks = []
    for rank in case.ranks:
        history = np.zeros(WINDOWS, dtype=HISTORY_DTYPE)
        history["seq"] = np.arange(1, WINDOWS + 1)
        history["micro_batches"] = STEPS
        history["wall_ns"] = int(WINDOW * 1e9)
        history["flags"][0] = WARM_UP
        times = np.arange(every // 2, WINDOWS, every)
        if rank.rank in who:
            history["phases"][times, PHASES.index(phase)] = seconds
        ranks.append(replace(rank, history=history))
    return replace(case, ranks=tuple(ranks))


def stalls(case: Case) -> tuple[Stalls, ...]:
    found = measure(case).stalls
    assert found is not None
    return found


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_rank_zero_alone(phase: str) -> None:
    (stall,) = stalls(long_run(phase, (0,)))
    assert (stall.ranks, stall.phase, stall.count) == ((0,), phase, 6)
    assert stall.saved == pytest.approx(6 * 4 / (119 * WINDOW))
    assert stall.seconds == pytest.approx(4)
    assert stall.compared == 119 * STEPS


def test_a_job_of_one_rank() -> None:
    """Its checkpoints are reported; its evaluations cannot be compared with another rank's."""
    case = long_run("checkpoint", (0,))
    alone = replace(case, ranks=case.ranks[:1], job=replace(case.job, world_size=1))
    (stall,) = stalls(alone)
    assert (stall.ranks, stall.phase, stall.count) == ((0,), "checkpoint", 6)
    assert stall.saved == pytest.approx(6 * 4 / (119 * WINDOW))
    evaluates = long_run("evaluation", (0,)).ranks[:1]
    assert stalls(replace(alone, ranks=evaluates)) == ()


def test_all_ranks_save_and_each_event_tells_when() -> None:
    case = long_run("checkpoint", (0, 1, 2, 3))
    events = tuple(Event("checkpoint", 0.0, at, 4.0, 0.0, "") for at in range(3000, 36000, 6000))
    case = replace(case, ranks=tuple(replace(rank, events=events) for rank in case.ranks))
    (stall,) = stalls(case)
    assert sorted(stall.ranks) == [0, 1, 2, 3]
    assert (stall.count, stall.period) == (6, 6000)


def test_evaluation_on_all_ranks_is_well() -> None:
    assert stalls(long_run("evaluation", (0, 1, 2, 3))) == ()


@pytest.mark.parametrize("every", [60, 100])
def test_once_or_twice_in_the_whole_run_is_no_pattern(every: int) -> None:
    assert stalls(long_run("checkpoint", (0,), every=every, seconds=9)) == ()


def test_what_takes_a_thousandth_of_the_time_is_not_reported() -> None:
    assert stalls(long_run("checkpoint", (0,), seconds=0.1)) == ()


@pytest.mark.parametrize(("steps", "found"), [(2, True), (1, False)])
def test_the_history_must_hold_half_as_much_again_as_the_records(steps: int, found: bool) -> None:
    """119 windows of so many steps against 115 steps on record."""
    case = long_run("checkpoint", (0,))
    for rank in case.ranks:
        rank.history["micro_batches"] = steps
    assert bool(stalls(case)) is found


def test_three_windows_are_a_pattern_and_the_third_longest_stands_for_all() -> None:
    (stall,) = stalls(long_run("checkpoint", (0,), every=40))
    assert (stall.count, stall.total) == pytest.approx((3, 12))
    case = long_run("checkpoint", (0,), seconds=2.0)
    case.ranks[0].history["phases"][50, PHASES.index("checkpoint")] = 10.0
    (stall,) = stalls(case)
    assert (stall.count, stall.total) == pytest.approx((6, 5 * 2 + 4 * 2))


def test_a_rank_without_a_history_hides_what_is_rare() -> None:
    case = long_run("checkpoint", (0,))
    last = replace(case.ranks[3], history=case.ranks[3].history[:0])
    assert stalls(replace(case, ranks=(*case.ranks[:3], last))) == ()
