"""Steady growth is told, with its slope; nothing healthy is."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.capacity.memory_growth import LEAST_POINTS, Growth, fit_growth

MIB = float(1 << 20)
STEPS = 120
AT = np.arange(float(STEPS))


def noise(seed: int, kind: str) -> np.ndarray:
    """In bytes, about a level of 40 GiB."""
    chance = np.random.default_rng(seed)
    level = 40_960.0
    if kind == "floor":
        values = level + chance.normal(0, 0.5, STEPS)
    elif kind == "lengths":
        values = level + chance.lognormal(6.5, 0.8, STEPS).clip(0, 15_000)
    elif kind == "collected":
        values = level + 30 * (np.arange(STEPS) % 17) + chance.normal(0, 5, STEPS)
    elif kind == "cache":
        values = level + 2000 * (1 - np.exp(-np.arange(STEPS) / 12)) + chance.normal(0, 2, STEPS)
    else:
        values = level + np.cumsum(chance.normal(0, 0.05, STEPS))
    return np.asarray(values * MIB)


@pytest.mark.parametrize("kind", ["floor", "lengths", "collected", "cache"])
def test_healthy_series_do_not_grow(kind: str) -> None:
    found = [fit_growth(AT, noise(seed, kind)) for seed in range(200)]
    assert [one for one in found if one is not None and one.sure > 64 * MIB] == []


def test_a_small_walk_is_below_what_is_told() -> None:
    found = [fit_growth(AT, noise(seed, "walk")) for seed in range(200)]
    assert all(one is None or one.sure < 64 * MIB for one in found)


@pytest.mark.parametrize("steps_to_rest", [40, 80, 150])
def test_what_grows_ever_more_slowly_comes_to_rest(steps_to_rest: int) -> None:
    grown = 2000 * MIB * (1 - np.exp(-AT / steps_to_rest))
    assert [fit_growth(AT, noise(seed, "floor") + grown) for seed in range(50)] == [None] * 50


def test_a_leak_beside_a_cache_that_fills_is_found_in_time() -> None:
    at = np.arange(4.0 * STEPS)
    values = (300 * (1 - np.exp(-at / 12)) + 2 * at) * MIB
    found = fit_growth(at, values)
    assert found is not None
    assert found.slope == pytest.approx(2 * MIB, rel=0.05)


@pytest.mark.parametrize("leak", [1.0, 5.0])
def test_a_leak_is_found_with_its_slope(leak: float) -> None:
    covered = 0
    for seed in range(50):
        found = fit_growth(AT, noise(seed, "floor") + leak * MIB * AT)
        assert found is not None
        assert found.slope == pytest.approx(leak * MIB, rel=0.05)
        covered += found.low <= leak * MIB <= found.high
        assert found.sure > 64 * MIB
        left = found.until((40_960 + leak * 1000) * MIB)
        assert left == pytest.approx(1000 - STEPS, rel=0.1)
    assert covered >= 0.8 * 50, "the interval is meant to hold it in 95 % of cases"


def test_gaps_and_spikes_do_not_hide_it() -> None:
    values = noise(1, "floor") + 2 * MIB * AT
    values[::7] = np.nan
    values[5] += 1e12
    found = fit_growth(AT, values)
    assert found is not None
    assert found.slope == pytest.approx(2 * MIB, rel=0.05)


def test_too_little_decides_nothing() -> None:
    assert fit_growth(AT[:20], AT[:20]) is None
    assert fit_growth(np.zeros(50), np.arange(50.0)) is None
    assert fit_growth(AT, np.full(STEPS, np.nan)) is None
    assert fit_growth(AT, -AT) is None


def test_a_long_series_is_thinned_evenly() -> None:
    places = np.arange(50_000.0)
    found = fit_growth(places, 3 * places + np.random.default_rng(0).normal(0, 10, 50_000))
    assert found is not None
    assert found.slope == pytest.approx(3, rel=0.01)
    assert found.places == places[-1]


@pytest.mark.parametrize("slope", [0.5, 3.0])
def test_a_straight_line_is_measured_exactly(slope: float) -> None:
    at = 10 + 2 * np.arange(LEAST_POINTS, dtype=float)
    found = fit_growth(at, 7 + slope * at)
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx((slope,) * 3)
    assert (found.last, found.places) == pytest.approx((7 + slope * at[-1], 58))
    assert found.sure == pytest.approx(58 * slope)
    assert found.until(found.last + 12) == pytest.approx(12 / slope)
    assert found.until(found.last - 1) == 0
    assert fit_growth(at[1:], 7 + slope * at[1:]) is None
    assert fit_growth(at, np.full(LEAST_POINTS, 7.0)) is None
    assert fit_growth(at, -slope * at) is None
    assert fit_growth(np.full(LEAST_POINTS, 3.0), slope * at) is None


def test_what_shrinks_is_never_full() -> None:
    assert Growth(0.0, 0.0, 0.0, 1.0, 1.0).until(2.0) is None
    assert Growth(-1.0, -1.0, -1.0, 1.0, 1.0).until(2.0) is None


def test_the_interval_is_that_of_the_ranked_slopes() -> None:
    """Sen 1968: as many slopes lie within as Kendall's statistic varies at random."""
    count = 60
    at = np.arange(float(count))
    values = 2 * at + np.random.default_rng(4).normal(0, 5, count)
    slopes = sorted(
        (values[j] - values[i]) / (at[j] - at[i]) for j in range(count) for i in range(j)
    )
    reach = 1.96 * np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    found = fit_growth(at, values)
    assert found is not None
    assert found.slope == pytest.approx(np.median(slopes))
    assert found.low == pytest.approx(slopes[int((len(slopes) - reach) / 2)])
    assert found.high == pytest.approx(slopes[int((len(slopes) + reach) / 2)])
    assert found.last == pytest.approx(np.median(values - found.slope * at) + found.slope * at[-1])


@pytest.mark.parametrize(
    ("thirds", "grows"),
    [
        ((1, 1, 1), True),
        ((10, 10, 7.01), True),
        ((10, 10, 6.99), False),
        ((1, 10, 10), False),
        ((10, 2, 10), True),
        ((10, 1, 10), False),
        ((4, 4, 20), True),
    ],
)
def test_every_third_must_grow_and_the_last_not_come_to_rest(
    thirds: tuple[float, ...], grows: bool
) -> None:
    values = np.cumsum(np.repeat(thirds, 40).astype(float))
    assert (fit_growth(AT, values) is not None) == grows


def test_values_that_are_unknown_are_left_out() -> None:
    values = 3 * AT
    values[::3] = np.nan
    found = fit_growth(AT, values)
    assert found is not None
    assert found.slope == pytest.approx(3)
