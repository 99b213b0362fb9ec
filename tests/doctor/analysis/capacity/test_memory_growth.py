"""Steady growth is told, with its slope; nothing healthy is."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.capacity.memory_growth import fit_growth

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
