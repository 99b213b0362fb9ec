"""Steady memory growth is reported with its slope; healthy memory is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mgpu_doctor.analysis.capacity.memory_growth import (
    LEAST_POINTS,
    Growth,
    MemoryGrowth,
    find_growing_devices,
    find_growing_hosts,
    fit_growth,
)
from mgpu_doctor.case.host_samples import HostSample, Task
from mgpu_doctor.case.model import Case
from tests.support.synthetic import Synthetic, synthetic_case

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


def test_a_small_walk_is_below_what_is_reported() -> None:
    found = [fit_growth(AT, noise(seed, "walk")) for seed in range(200)]
    assert all(one is None or one.sure < 64 * MIB for one in found)


@pytest.mark.parametrize("steps_to_rest", [40, 80, 150])
def test_what_grows_ever_more_slowly_comes_to_rest(steps_to_rest: int) -> None:
    grown = 2000 * MIB * (1 - np.exp(-AT / steps_to_rest))
    assert [fit_growth(AT, noise(seed, "floor") + grown) for seed in range(50)] == [None] * 50


def test_a_leak_beside_a_cache_that_fills_is_found_in_time() -> None:
    at = np.arange(4.0 * STEPS)
    values = (300 * (1 - np.exp(-at / 12)) + 2 * at) * MIB
    growth = fit_growth(at, values)
    assert growth is not None
    assert growth.slope == pytest.approx(2 * MIB, rel=0.05)


@pytest.mark.parametrize("leak", [1.0, 5.0])
def test_a_leak_is_found_with_its_slope(leak: float) -> None:
    covered = 0
    for seed in range(50):
        growth = fit_growth(AT, noise(seed, "floor") + leak * MIB * AT)
        assert growth is not None
        assert growth.slope == pytest.approx(leak * MIB, rel=0.05)
        covered += growth.low <= leak * MIB <= growth.high
        assert growth.sure > 64 * MIB
        left = growth.until((40_960 + leak * 1000) * MIB)
        assert left == pytest.approx(1000 - STEPS, rel=0.1)
    assert covered >= 0.8 * 50, "the interval is meant to hold it in 95 % of cases"


def test_gaps_and_spikes_do_not_hide_it() -> None:
    values = noise(1, "floor") + 2 * MIB * AT
    values[::7] = np.nan
    values[5] += 1e12
    growth = fit_growth(AT, values)
    assert growth is not None
    assert growth.slope == pytest.approx(2 * MIB, rel=0.05)


def test_too_little_decides_nothing() -> None:
    assert fit_growth(AT[:20], AT[:20]) is None
    assert fit_growth(np.zeros(50), np.arange(50.0)) is None
    assert fit_growth(AT, np.full(STEPS, np.nan)) is None
    assert fit_growth(AT, -AT) is None


def test_a_long_series_is_thinned_evenly() -> None:
    places = np.arange(50_000.0)
    growth = fit_growth(places, 3 * places + np.random.default_rng(0).normal(0, 10, 50_000))
    assert growth is not None
    assert growth.slope == pytest.approx(3, rel=0.01)
    assert growth.places == places[-1]


@pytest.mark.parametrize("slope", [0.5, 3.0])
def test_a_straight_line_is_measured_exactly(slope: float) -> None:
    at = 10 + 2 * np.arange(LEAST_POINTS, dtype=float)
    growth = fit_growth(at, 7 + slope * at)
    assert growth is not None
    assert (growth.slope, growth.low, growth.high) == pytest.approx((slope,) * 3)
    assert (growth.last, growth.places) == pytest.approx((7 + slope * at[-1], 58))
    assert growth.sure == pytest.approx(58 * slope)
    assert growth.until(growth.last + 12) == pytest.approx(12 / slope)
    assert growth.until(growth.last - 1) == 0
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
    growth = fit_growth(at, values)
    assert growth is not None
    assert growth.slope == pytest.approx(np.median(slopes))
    assert growth.low == pytest.approx(slopes[int((len(slopes) - reach) / 2)])
    assert growth.high == pytest.approx(slopes[int((len(slopes) + reach) / 2)])
    assert growth.last == pytest.approx(
        np.median(values - growth.slope * at) + growth.slope * at[-1]
    )


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
    growth = fit_growth(AT, values)
    assert growth is not None
    assert growth.slope == pytest.approx(3)


def test_growth_is_significant_from_four_deviations_on() -> None:
    """Kendall's statistic of 30 values varies by the root of 30 * 29 * 65 / 18 at random."""
    chance = np.random.default_rng(0)
    first, second = np.triu_indices(30, 1)
    told = []
    for swaps in (*range(60),) * 20:
        values = np.arange(30.0)
        for _ in range(swaps):
            one, other = chance.choice(30, 2, replace=False)
            values[[one, other]] = values[[other, one]]
        rising = np.sign(values[second] - values[first]).sum()
        if fit_growth(np.arange(30.0), values) is not None:
            told.append((rising - np.sign(rising)) / np.sqrt(30 * 29 * 65 / 18))
    assert 4 < min(told) < 4.1


BYTES = 8 * MIB


def growing(**fields: np.ndarray) -> Case:
    """A rank whose records have these fields; steps count from 0."""
    case = synthetic_case(Synthetic(ranks=1, steps=STEPS))
    for name, values in fields.items():
        case.ranks[0].steps[name] = values
    return case


def test_bytes_that_are_unknown_are_no_zeros() -> None:
    values = 40_960 * MIB + BYTES * AT
    values[::2] = 0
    (growth,) = find_growing_devices(growing(device_bytes=values), BYTES)
    assert growth.growth.slope == pytest.approx(BYTES)
    assert growth.free is None
    assert growth.left is None


@pytest.mark.parametrize("field", ["device_bytes", "resident_bytes"])
def test_growth_of_exactly_the_least_counts(field: str) -> None:
    case = growing(**{field: 40_960 * MIB + BYTES * AT})

    def found(least: float) -> int:
        if field == "device_bytes":
            return len(find_growing_devices(case, least))
        return len(find_growing_hosts(case, 0.03, least))

    sure = BYTES * (STEPS - 1 - 5)  # the first five steps are the warm-up
    assert found(sure) == 1
    assert found(np.nextafter(sure, np.inf)) == 0


def test_memory_that_is_full_before_and_after_its_time() -> None:
    growth = Growth(2.0, 1.0, 4.0, 100.0, 50.0)
    (rank,) = growing().ranks
    alone = MemoryGrowth(rank, growth, "", free=80.0)
    assert alone.left == (40.0, 20.0, 80.0)
    assert replace(alone, together=2.0).left == (20.0, 10.0, 40.0)


@pytest.mark.parametrize(
    ("room", "resident", "steps", "limited"),
    [(100, 500, 50, True), (100, 520, 60, True), (None, 500, 128, False), (400, 500, 128, False)],
)
def test_the_host_and_its_own_limit_are_full_at_a_step(
    room: int | None, resident: int, steps: float, limited: bool
) -> None:
    """2 MiB per step, 500 MiB at the end; 256 MiB of the host are free. MiB."""
    case = growing(resident_bytes=500 * MIB - 2 * MIB * (AT[-1] - AT))
    rank = case.ranks[0]
    assert rank.pid is not None
    task = Task(room=None if room is None else int(room * MIB))
    sample = HostSample(
        case.observed,
        None,
        2,
        None,
        int(768 * MIB),
        int(1024 * MIB),
        processes={rank.pid: (1.0, int(resident * MIB))},
        tasks={rank.pid: task},
    )
    (growth,) = find_growing_hosts(replace(case, host_samples=(sample,)), 0.03, BYTES)
    assert growth.left is not None
    assert growth.left[0] == pytest.approx(steps)
    assert growth.limited is limited
