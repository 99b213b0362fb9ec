"""How a rank spends its time, by hand: shares, coverage, long steps, waits at epoch begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mgpu_probes.inprocess.layout import BACKWARD, INPUT, OTHER, WARM_UP

from mgpu_doctor.analysis.measures import measure
from mgpu_doctor.analysis.statistics.pace_comparison import (
    find_slow_pace,
    measure_paces,
    throughput_lost,
)
from mgpu_doctor.analysis.steps.phase_shares import (
    at_epoch_starts,
    coverage,
    find_long_steps,
    long_steps_of,
    phase_shares,
    step_seconds,
)
from mgpu_doctor.analysis.steps.warm_up import after_warm_up
from mgpu_doctor.case.device_times import DEVICE_TIMED
from mgpu_doctor.case.model import Rank
from mgpu_doctor.case.process_metadata import Pace
from mgpu_doctor.recording.box import STEP_DTYPE
from mgpu_doctor.recording.second_process import sharing_works
from tests.support.per_step_jobs import Seconds
from tests.support.synthetic import make_case, make_rank

WAIT, COMMUNICATION = 4, 5
FIRST = 5
"""The first step that counts."""


def covered(ranks: Sequence[Rank]) -> float | None:
    work = coverage(ranks)
    with sharing_works((work,), 0) as results:
        return results.of(work)


def steps(walls: Sequence[float], **phases: Any) -> Any:
    """Steps from FIRST on that end one after the other, of so many seconds; phase -> seconds."""
    made = np.zeros(len(walls), dtype=STEP_DTYPE)
    made["seq"] = np.arange(len(walls)) + 1
    made["step"] = np.arange(len(walls)) + FIRST
    made["wall_ns"] = np.round(np.array(walls) * 1e9)
    made["end_ns"] = 10**12 + np.cumsum(made["wall_ns"])
    made["micro_batches"] = 1
    numbers = {"input": INPUT, "backward": BACKWARD, "other": OTHER}
    for name, seconds in phases.items():
        made["phases"][:, numbers[name]] = seconds
    return made


def rank(made: Any, number: int = 0) -> Rank:
    return make_rank(number, made)


def nameless(made: Any) -> Rank:
    return replace(rank(made), rank=None)


# --- shares and coverage --------------------------------------------------------------------


def test_the_share_of_a_phase_counts_only_steps_in_which_it_was_measured() -> None:
    some = steps([1.0, 2.0, 1.0, 4.0], input=[0.5, np.nan, 0.5, 1.0])
    none = steps([1.0, 1.0], input=[np.nan, np.nan])
    ranks = [rank(some), rank(none, 1), nameless(some), rank(some[:0], 3)]
    assert phase_shares(ranks, INPUT) == pytest.approx({0: 2 / 6})
    assert phase_shares(ranks[1:], INPUT) is None


def test_the_first_five_steps_and_marked_ones_are_the_warm_up() -> None:
    made = steps([1.0] * 8)
    made["step"] -= FIRST
    assert after_warm_up(made)["step"].tolist() == [5, 6, 7]
    made = steps([1.0] * 8)
    made["flags"][2] = WARM_UP
    assert 2 + FIRST not in after_warm_up(made)["step"].tolist()


def test_the_mean_of_a_step_is_over_steps_and_ranks() -> None:
    ranks = [rank(steps([1.0, 2.0, 3.0])), rank(steps([6.0]), 1)]
    assert step_seconds(ranks) == pytest.approx(3.0)
    assert step_seconds([rank(steps([]))]) is None


def test_what_no_phase_explains_lowers_the_coverage() -> None:
    made = steps([1.0] * 4, backward=0.75, other=0.25)
    assert covered([rank(made)]) == pytest.approx(0.75)
    assert covered([rank(made[:0])]) is None
    assert covered([rank(made), rank(steps([]), 1)]) == pytest.approx(0.75)
    whole = steps([1.0] * 4, backward=1.0)
    assert covered([rank(made), rank(whole, 1)]) == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("seq", "flags", "expected"),
    [
        ((1, 2, 3, 4), (0, 0, 0, 0), 4 / 5),
        ((1, 2, 4, 5), (0, 0, 0, 0), 4 / 4),
        ((1, 2, 3, 4), (0, 0, DEVICE_TIMED, 0), 4 / 4),
        ((1, 2, 3, 4), (0, 0, WARM_UP, 0), 3 / 3),
    ],
    ids=["time between steps", "lost records", "timed by the device", "warm-up"],
)
def test_time_between_two_steps_is_not_explained(
    seq: tuple[int, ...], flags: tuple[int, ...], expected: float
) -> None:
    """One second passes between the second and the third."""
    made = steps([1.0] * 4, backward=1.0)
    made["end_ns"][2:] += 10**9
    made["seq"], made["flags"] = seq, flags
    assert covered([rank(made)]) == pytest.approx(expected)


def test_steps_that_overlap_leave_no_negative_time_between_them() -> None:
    made = steps([1.0] * 4, backward=0.5)
    made["end_ns"][2:] -= 10**8
    assert covered([rank(made)]) == pytest.approx(0.5)


# --- long steps -----------------------------------------------------------------------------


def with_long(many: int, seconds: float, after: int = 0) -> Seconds:
    """100 steps of a second, of which so many take longer: one in six, once it has warmed up."""
    walls = np.ones(100)
    walls[30 + after + 6 * np.arange(many)] = seconds
    return walls


@pytest.mark.parametrize(
    ("many", "seconds", "found"),
    [
        (10, 5.1, True),
        (10, 5.0, False),
        (11, 6.0, False),
        (4, 6.1, True),
        (4, 5.9, False),
    ],
)
def test_few_steps_of_five_medians_that_take_a_fifth_of_the_time(
    many: int, seconds: float, found: bool
) -> None:
    one = long_steps_of(rank(steps(with_long(many, seconds).tolist())))
    assert (one is not None) is found
    if one is not None:
        time = many * seconds / (many * seconds + 100 - many)
        assert (one.steps, one.time) == pytest.approx((many / 100, time))
        assert (one.seconds, one.period) == pytest.approx((seconds, 6))


def test_the_same_steps_of_all_ranks_are_long() -> None:
    """What one rank does between two steps the others wait for in their next one: it is one stall,
    and takes as much of the time on every rank."""
    first, other = with_long(4, 9.0), with_long(4, 9.0, after=1)
    together = find_long_steps(np.arange(100), np.stack([first, other], axis=1))
    assert together is not None
    assert together.steps == 0.04
    assert together.period == pytest.approx(6)
    assert (together.time, together.seconds) == pytest.approx((40 / (40 + 92), 10))
    assert find_long_steps(np.arange(100), np.ones((100, 2))) is None
    assert find_long_steps(np.arange(0), np.ones((0, 2))) is None


# --- epochs ---------------------------------------------------------------------------------


def fetching(epoch: int, first: float, other: float, count: int = 30, batches: int = 1) -> Rank:
    made = steps([1.0] * count)
    place = made["step"] % epoch
    made["phases"][:, INPUT] = np.where(place == 2, first, other)
    made["micro_batches"] = batches
    return rank(made)


def test_the_extra_wait_of_an_epochs_first_step() -> None:
    found = at_epoch_starts(fetching(6, 0.5, 0.01), 6)
    extra, whole = 5 * (0.5 - 0.01), 5 * 0.5 + 25 * 0.01
    assert found == pytest.approx((extra / whole, 0.5))


@pytest.mark.parametrize(
    ("epoch", "batches", "count", "each", "known"),
    [
        (3, 3, 30, 1, True),
        (2, 2, 30, 1, False),
        (6, 12, 30, 2, True),
        (6, 13, 30, 2, False),
        (6, 6, 18, 1, True),
        (6, 6, 17, 1, False),
        (6, 0, 30, 1, False),
        (6, None, 30, 1, False),
    ],
)
def test_a_pattern_needs_three_epochs_of_three_steps(
    epoch: int, batches: int | None, count: int, each: int, known: bool
) -> None:
    made = fetching(epoch, 0.5, 0.01, count, each)
    assert (at_epoch_starts(made, batches) is not None) is known


def test_who_never_waits_has_no_first_wait() -> None:
    assert at_epoch_starts(fetching(6, 0.0, 0.0), 6) is None


# --- paces ----------------------------------------------------------------------------------


def test_a_pace_is_what_is_left_without_waiting_and_moving_data() -> None:
    made = steps([1.0] * 300)
    made["phases"][:, WAIT] = 0.3
    made["phases"][:, COMMUNICATION] = np.where(np.arange(300) < 50, np.nan, 0.1)
    ranks = [rank(made), nameless(made), rank(made[:0], 2), rank(made[:40], 3)]
    found = measure_paces(ranks)
    assert [(one.index, one.newest) for one in found] == [(0, 256), (3, 40)]
    assert [one.middle for one in found] == pytest.approx([0.6, 0.7])


def pace(index: int, middle: float, spread: float = 0.0, times: int = 100) -> Pace:
    return Pace(index, times, times, (middle - spread / 2, middle, middle + spread / 2))


@pytest.mark.parametrize(
    ("paces", "slow"),
    [
        ([pace(0, 1.0), pace(1, 1.25)], 1),
        ([pace(0, 1.0), pace(1, 1.249)], None),
        ([pace(0, 1.0), pace(1, 1.0), pace(2, 1.2), pace(3, 1.3)], 3),
        ([pace(0, 1.0), pace(1, 2.0, times=30)], 1),
        ([pace(0, 1.0), pace(1, 2.0, times=29)], None),
        ([pace(0, 0.0), pace(1, 2.0)], None),
        ([pace(0, 1.0), pace(1, 2.0, spread=2.15)], 1),
        ([pace(0, 1.0), pace(1, 2.0, spread=2.16)], None),
        ([pace(0, 1.0, spread=1.52), pace(1, 2.0, spread=1.52)], 1),
        ([pace(0, 1.0, spread=1.53), pace(1, 2.0, spread=1.53)], None),
    ],
)
def test_which_pace_is_slow_for_sure(paces: list[Pace], slow: int | None) -> None:
    """By a quarter, and by five standard errors: 0.093 of the spread each, of 100 times."""
    found = find_slow_pace(paces)
    assert (found.index if found is not None else None) == slow


def test_what_a_slow_pace_costs() -> None:
    paces = [pace(0, 1.0), pace(1, 1.0), pace(2, 2.0), pace(3, 0.0)]
    found = find_slow_pace(paces[:3])
    assert found is not None
    assert (found.middle, found.of_others, found.excess, found.others) == (2.0, 1.0, 1.0, (0, 1))
    assert throughput_lost(paces, found) == pytest.approx(1 - 2.5 / 3)


@pytest.mark.parametrize(("world", "alone"), [(1, True), (None, True), (2, False)])
def test_of_one_rank_of_several_nobody_knows_what_input_costs(
    world: int | None, alone: bool
) -> None:
    case = make_case([rank(steps([1.0] * 60, input=0.25))], world_size=world)
    measures = measure(case)
    assert measures.input_saved == (pytest.approx(0.25) if alone else None)
    assert ("joined" in measures.missing) is not alone
