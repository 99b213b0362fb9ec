"""When an excess counts as persistent."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.statistics.significance import (
    LEAST_STEPS,
    change_point,
    estimate,
    limit,
    persistent,
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
