"""Time saved by runs in the order A B B A: the interval knows the noise within and between runs."""

from __future__ import annotations

import math

import pytest

from mgpu_doctor.analysis.comparing.step_time_noise import Level
from mgpu_doctor.analysis.trials.paired_effect import (
    Block,
    Noise,
    estimate_saving,
    pool_noise,
    student_quantile,
)


def level(seconds: float, error: float | None = 1e-3) -> Level:
    return Level(seconds, error, 9.0)


@pytest.mark.parametrize(
    ("probability", "freedom", "table"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.9875, 3, 4.177),
        (0.975, 10, 2.228),
        (0.9875, 30, 2.360),
        (0.975, 1000, 1.962),
    ],
)
def test_quantiles_of_students_t_agree_with_its_tables(
    probability: float, freedom: float, table: float
) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(table, rel=2e-3)


def test_a_broken_number_of_degrees_is_never_more_certain_than_the_next_whole_one() -> None:
    for tenth in range(10, 60):
        below, above = tenth / 10, tenth / 10 + 0.1
        assert student_quantile(0.975, below) >= student_quantile(0.975, above) * 0.999


def test_a_machine_that_slows_down_evenly_changes_nothing() -> None:
    """Each run is 2 % slower than the one before; the treatment saves a tenth."""
    times = [0.1 * 1.02**place for place in range(4)]
    block = Block(level(times[0]), level(times[1] * 0.9), level(times[2] * 0.9), level(times[3]))
    saved = estimate_saving([block], Noise(1e-6, 10))
    assert saved.share == pytest.approx(0.1)
    assert saved.is_gain
    assert not saved.is_loss


def test_noise_is_the_larger_of_that_within_and_between_runs() -> None:
    even = [level(0.1, 0.01)] * 4
    within = pool_noise(even, [])
    assert within is not None
    assert (within.variance, within.freedom) == pytest.approx((1e-4, 2 * 9 / 8))
    apart = [level(0.1), level(0.1 * math.exp(0.04)), level(0.1), level(0.1 * math.exp(0.04))]
    between = pool_noise(apart, [(level(1.0), level(math.exp(0.04)))])
    assert between is not None
    assert (between.variance, between.freedom) == pytest.approx((0.04**2 / 2, 2 * 9 / 8 + 1))
    assert pool_noise([level(0.1)], []) is None


def test_a_difference_within_the_noise_is_neither_gain_nor_loss() -> None:
    block = Block(level(0.100), level(0.094), level(0.096), level(0.101))
    quiet, loud = Noise(0.005**2, 8), Noise(0.05**2, 8)
    assert estimate_saving([block], quiet).is_gain
    assert not estimate_saving([block], loud).is_gain
    both = estimate_saving([block], loud)
    assert both.low < 0 < both.share < both.high


def test_more_looks_widen_the_interval_and_more_blocks_narrow_it() -> None:
    block, noise = Block(level(0.1), level(0.095), level(0.095), level(0.1)), Noise(1e-4, 6)
    once, twice = estimate_saving([block], noise), estimate_saving([block], noise, looks=2)
    more = estimate_saving([block, block], noise)
    assert twice.low < once.low < more.low < more.share == pytest.approx(0.05)


def test_runs_of_a_treatment_that_differ_among_themselves_are_not_sure() -> None:
    """The other runs of the session hardly differ."""
    steady = Block(level(0.1), level(0.08), level(0.08), level(0.1))
    shaky = Block(level(0.1), level(0.065), level(0.0985), level(0.1))
    assert estimate_saving([steady], Noise(1e-6, 8)).is_gain
    assert not estimate_saving([shaky], Noise(1e-6, 8)).is_gain


def test_pairs_that_disagree_show_nothing() -> None:
    block = Block(level(0.1), level(0.05), level(0.101), level(0.1))
    saved = estimate_saving([block], Noise(1e-6, 8))
    assert not saved.pairs_agree
    assert not saved.is_gain
    assert not saved.is_loss


def test_a_treatment_that_costs_time_is_a_loss_and_one_percent_is_nothing() -> None:
    slower = Block(level(0.1), level(0.12), level(0.12), level(0.1))
    slightly = Block(level(0.1), level(0.099), level(0.099), level(0.1))
    assert estimate_saving([slower], Noise(1e-6, 8)).is_loss
    assert not estimate_saving([slightly], Noise(1e-8, 8)).is_gain
