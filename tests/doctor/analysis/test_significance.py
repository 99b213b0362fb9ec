"""When an excess counts as persistent."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest

from mgpu_doctor.analysis.statistics.significance import (
    FALSE_ALARMS,
    LEAST_STEPS,
    MOST_EXACT,
    autocorrelation,
    change_point,
    estimate,
    last_so_often,
    limit,
    period,
    persistent,
    signed_rank,
    tail_bound,
)


def noise(steps: int, seed: int = 0, spread: float = 0.03) -> np.ndarray:
    return spread * np.random.default_rng(seed).standard_normal(steps)


def alike(steps: int, seed: int, correlation: float = 0.6) -> np.ndarray:
    """Neighbours more alike than in real jobs of four ranks on two cores (0 to 0.5)."""
    series = noise(steps, seed)
    for at in range(1, steps):
        series[at] += correlation * series[at - 1]
    return series


def test_a_steady_excess_is_found_and_measured() -> None:
    found = persistent(0.1 + noise(60), comparisons=32, floor=0.02)
    assert found is not None
    assert found.effect == pytest.approx(0.1, abs=0.01)
    assert found.onset == 0
    assert found.certainty >= 1


def test_an_onset_is_dated() -> None:
    series = noise(200)
    series[120:] += 0.1
    found = persistent(series, comparisons=32, floor=0.02)
    assert found is not None
    assert abs(found.onset - 120) <= 2
    assert found.effect == pytest.approx(0.1, abs=0.01)


def test_an_excess_that_ended_is_not_persistent() -> None:
    series = noise(200)
    series[:170] += 0.1
    assert persistent(series, comparisons=32, floor=0.02) is None


def test_stalls_now_and_then_are_not_persistent() -> None:
    series = noise(200)
    series[::20] += 4.0
    assert persistent(series, comparisons=32, floor=0.02) is None


def test_too_few_steps_decide_nothing() -> None:
    assert persistent(np.full(LEAST_STEPS - 1, 0.5), comparisons=8, floor=0.02) is None


def test_what_is_below_the_floor_is_nothing_however_sure() -> None:
    assert persistent(0.015 + noise(5000, spread=1e-4), comparisons=8, floor=0.02) is None


def test_neighbouring_steps_that_are_alike_widen_the_error() -> None:
    series = alike(400, seed=3)
    shuffled = np.random.default_rng(0).permutation(series)
    assert estimate(series).error > 1.5 * estimate(shuffled).error
    assert estimate(series).freedom < estimate(shuffled).freedom


def test_no_alarm_on_correlated_noise() -> None:
    alarms = [
        seed
        for seed in range(300)
        if persistent(alike(80, seed), comparisons=32, floor=0.0) is not None
    ]
    assert alarms == []


def test_the_limit_grows_with_ranks_and_with_few_steps() -> None:
    assert limit(16, 100) < limit(4096, 100) < limit(80_000, 100)
    assert limit(16, 10) > limit(16, 1000)


def test_noise_has_no_change_point() -> None:
    found = [seed for seed in range(100) if change_point(noise(150, seed)) is not None]
    assert found == []


def test_an_estimate_by_hand() -> None:
    series = np.array([0.0, 7, 1, 8, 2, 100, 3, 6, 4, 5])
    found = estimate(series)
    assert found.mean == pytest.approx(4.5)  # without 0 and 100
    clipped = np.clip(series, 1, 8)
    spread = clipped.std(ddof=1)
    assert found.error == pytest.approx(spread / (0.8 * math.sqrt(10)))
    assert found.freedom == 7
    widened = estimate(series, alike=0.5)
    assert widened.mean == found.mean
    assert widened.error == pytest.approx(found.error * math.sqrt(3))
    assert widened.freedom == pytest.approx(8 / 3 - 1)
    assert estimate(series, alike=0.9).freedom == 1


def test_autocorrelation_by_hand() -> None:
    centred = np.array([2.0, 1, 1, -1, -1, -2])
    raw = 5 / 12
    assert autocorrelation(centred) == pytest.approx(raw + (1 + 3 * raw) / 6)
    assert autocorrelation(np.zeros(6)) == 0
    assert autocorrelation(np.array([1.0, -1] * 10)) == 0
    assert autocorrelation(np.repeat([1.0, -1], 50)) == 0.9


@pytest.mark.parametrize("comparisons", [0, 1, 32])
@pytest.mark.parametrize("freedom", [5.0, 100.0])
def test_a_limit_by_hand(comparisons: int, freedom: float) -> None:
    gauss = NormalDist().inv_cdf(1 - FALSE_ALARMS / max(1, comparisons))
    expected = gauss + gauss * (gauss**2 + 1) / (4 * freedom)
    assert limit(comparisons, freedom) == pytest.approx(expected)


def test_the_floor_and_the_least_number_of_steps_belong_to_what_is_found() -> None:
    series = np.full(LEAST_STEPS, 0.5)
    found = persistent(series, comparisons=4, floor=0.5)
    assert found is not None
    assert (found.effect, found.certainty, found.positive, found.onset) == (0.5, 1, 1, 0)
    assert persistent(series, comparisons=4, floor=np.nextafter(0.5, 1)) is None
    assert persistent(series[1:], comparisons=4, floor=0.5) is None


@pytest.mark.parametrize(("positive", "expected"), [(70, True), (69, False)])
def test_how_many_steps_must_show_it(positive: int, expected: bool) -> None:
    shown = np.random.default_rng(0).permutation(100) < positive
    series = np.where(shown, 1.0, -0.01)
    found = persistent(series, comparisons=1, floor=0.01)
    assert (found is not None) == expected
    if found is not None:
        assert found.positive == pytest.approx(0.7)


@pytest.mark.parametrize("onset", range(5, 16, 5))
def test_a_step_of_the_level_is_dated_to_the_step(onset: int) -> None:
    series = np.where(np.arange(40) < onset, 0.0, 1.0)
    assert change_point(series) == onset
    assert change_point(-series) == onset


def test_a_change_before_the_head_is_from_the_start() -> None:
    assert change_point(np.where(np.arange(20) < 4, 0.0, 1.0)) is None
    assert change_point(noise(200)) is None


@pytest.mark.parametrize(
    ("gaps", "steps"),
    [
        ([10, 10, 10, 10], 10.0),
        ([40, 42, 38, 40], 40.0),
        ([40, 43, 40, 40], 40.0),
        ([40, 43, 37, 40], None),
        ([10, 10, 10, 30], 10.0),
        ([10, 30, 10, 30], None),
        ([10], None),
    ],
)
def test_a_period_is_the_mean_of_the_gaps_that_are_alike(
    gaps: list[int], steps: float | None
) -> None:
    found = period(np.cumsum([7, *gaps]))
    assert (found.steps if found else None) == steps


def test_the_chance_of_a_period_is_that_of_geometric_gaps() -> None:
    found = period(np.cumsum([0, 40, 42, 38, 40]))
    assert found is not None
    single = sum((1 / 40) * (1 - 1 / 40) ** (gap - 1) for gap in range(38, 43))
    assert found.chance == pytest.approx(tail_bound(3, 3, single))
    assert found.chance == pytest.approx(single**3)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_bound_of_a_tail_is_above_the_tail_and_near_it(share: float) -> None:
    for trials, hits in itertools.product((1, 5, 40), range(41)):
        if hits > trials:
            continue
        exact = sum(
            math.comb(trials, k) * share**k * (1 - share) ** (trials - k)
            for k in range(hits, trials + 1)
        )
        assert last_so_often(hits, trials, 4) <= 1 + 1e-12
        bound = tail_bound(hits, trials, share)
        assert exact <= bound + 1e-12
        if hits <= share * trials:
            assert bound == 1
        if hits == trials:
            assert bound == pytest.approx(share**trials)
        assert bound <= max(exact * (trials + 1) * 2, 1e-300) or bound == 1
    assert tail_bound(1, 0, share) == tail_bound(5, 5, 1.0) == 1


def test_how_often_a_rank_comes_last_by_chance() -> None:
    for times in range(6):
        orders = itertools.product(range(3), repeat=5)
        often = sum(order.count(0) >= times for order in orders)
        assert last_so_often(times, 5, 3) == pytest.approx(often / 3**5)


@pytest.mark.parametrize(
    "values", [[1, 2, 3], [-1, 2, 3], [1, -2, 3, 0], [-1, -2, -3], [5, -1, 4, -2, 3, 6], [0.0]]
)
def test_signed_ranks_are_counted_over_all_signs(values: list[float]) -> None:
    known = sorted((value for value in values if value), key=abs)
    below = sum(rank for rank, value in enumerate(known, 1) if value < 0)
    sums = [
        sum(rank for rank, sign in enumerate(signs, 1) if sign)
        for signs in itertools.product((0, 1), repeat=len(known))
    ]
    expected = sum(sum <= below for sum in sums) / len(sums)
    assert signed_rank(np.array(values, dtype=float)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_signed_ranks_of_many_values_are_as_of_few(seed: int) -> None:
    """On both sides of the number up to which they are counted out."""
    exact = noise(MOST_EXACT, seed) + 0.005
    rank = np.argsort(np.argsort(np.abs(exact))) + 1
    below, count = rank[exact < 0].sum(), len(exact)
    mean = count * (count + 1) / 4
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    by_normal = NormalDist(mean, spread).cdf(below)
    assert signed_rank(exact) == pytest.approx(by_normal, abs=0.01)
    assert signed_rank(exact) != pytest.approx(by_normal, rel=1e-9)
    more = np.append(exact, 1.0)
    count += 1
    mean = count * (count + 1) / 4
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    assert signed_rank(more) == pytest.approx(NormalDist(mean, spread).cdf(below))


@pytest.mark.parametrize(("before", "began"), [(0.0, True), (0.45, True), (0.55, False)])
def test_an_excess_that_was_half_as_large_before_began_then(before: float, began: bool) -> None:
    series = np.where(np.arange(100) < 40, before, 1.0)
    found = persistent(series + noise(100, spread=1e-3), comparisons=1, floor=0.1)
    assert (found is not None and found.onset == 40) is began


@pytest.mark.parametrize(("steps", "found"), [(LEAST_STEPS, True), (LEAST_STEPS - 1, False)])
def test_an_onset_needs_as_many_steps_after_it(steps: int, found: bool) -> None:
    series = np.concatenate([np.zeros(100), np.ones(steps)]) + noise(100 + steps, spread=1e-3)
    one = persistent(series, comparisons=1, floor=0.1)
    assert (one is not None and one.onset == 100) is found
