"""Which of several is slower at the same work, by quartiles of their newest times."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.statistics.pace_comparison import find_slow_pace, throughput_lost
from mgpu_doctor.case.process_metadata import Pace


def pace(index: int, times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Pace:
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
    return Pace(index, len(times), len(times), (float(low), float(middle), float(high)))


def job(factors: list[float], seed: int, spread: float, count: int = 64) -> list[Pace]:
    random = np.random.default_rng(seed)
    return [
        pace(index, 0.05 * factor * random.lognormal(0, spread, count))
        for index, factor in enumerate(factors)
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("workers", [2, 8])
def test_healthy_ones_differ_and_nobody_is_named(workers: int, seed: int) -> None:
    assert find_slow_pace(job([1.0, 1.1] * (workers // 2), seed, spread=0.4)) is None


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_slow_one_is_named_with_what_it_costs(workers: int) -> None:
    paces = job([1.0] * (workers - 1) + [2.0], 1, spread=0.2)
    slow = find_slow_pace(paces)
    assert slow is not None
    assert slow.index == workers - 1
    assert slow.others == tuple(range(workers - 1))
    assert slow.excess == pytest.approx(0.05, rel=0.2)
    assert throughput_lost(paces, slow) == pytest.approx(0.5 / workers, abs=0.04)


def test_two_slow_ones_are_no_one() -> None:
    assert find_slow_pace(job([1.0, 1.0, 1.0, 2.0, 2.0], 1, spread=0.2)) is None


def test_of_few_times_nothing_is_reported() -> None:
    assert find_slow_pace(job([1.0, 3.0], 1, spread=0.1, count=20)) is None
    assert find_slow_pace(job([3.0], 1, spread=0.1)) is None
