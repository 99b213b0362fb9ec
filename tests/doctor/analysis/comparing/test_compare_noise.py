"""When two runs count as different: rarely if they are equal, surely if they are not."""

from __future__ import annotations

import numpy as np
import pytest

from mgpu_doctor.analysis.comparing.run_pairs import Change, pair
from mgpu_doctor.analysis.comparing.step_time_noise import (
    ERROR_RATE,
    INTERVALS,
    LEAST_FREEDOM,
    Level,
    mean_level,
    median_level,
    quantile,
    ratio,
)
from tests.support.compared_runs import STEP, run, steady, step_times

PAIRS = 200


def change(first: np.ndarray, second: np.ndarray) -> Change:
    return pair([run("a", first), run("b", second)], 0, 1, "samples").change


@pytest.mark.slow
def test_equal_runs_differ_at_most_as_often_as_is_reported() -> None:
    settings = [(40, 0.3), (100, 0.5), (200, 0.0), (200, 0.6), (400, 0.7)]
    wrong = 0
    for seed in range(PAIRS):
        for steps, alike in settings:
            first = step_times(steps, 2 * seed, alike=alike)
            second = step_times(steps, 2 * seed + 1, alike=alike)
            wrong += change(first, second) is not Change.NONE
    assert wrong <= ERROR_RATE * PAIRS * len(settings)


def test_a_tenth_more_in_200_steps_of_5_percent_noise_is_shown() -> None:
    for seed in range(60):
        first, second = step_times(200, 2 * seed), 1.1 * step_times(200, 2 * seed + 1)
        assert change(first, second) is Change.SLOWER
        assert change(second, first) is Change.FASTER


def test_the_interval_holds_the_truth_nearly_always() -> None:
    held = 0
    for seed in range(PAIRS):
        first, second = (mean_level(step_times(200, 2 * seed + one)) for one in (0, 1))
        found = ratio(first, second, scale=1.3)
        assert found is not None
        held += found.low <= 1.3 <= found.high
    assert held >= (1 - ERROR_RATE) * PAIRS


def test_a_pause_every_twentieth_step_counts_though_the_usual_step_is_the_same() -> None:
    first, second = step_times(400, 1), step_times(400, 2)
    second[::20] += 10 * STEP
    both = pair([run("a", first), run("b", second)], 0, 1, "samples")
    assert both.change is Change.SLOWER
    assert both.usual is not None
    assert not both.usual.shown


def test_one_long_pause_does_not_hide_that_the_usual_step_is_slower() -> None:
    first, second = step_times(200, 1), 1.1 * step_times(200, 2)
    first[77] += 100 * STEP
    both = pair([run("a", first), run("b", second)], 0, 1, "samples")
    assert both.whole is not None
    assert not both.whole.shown
    assert both.change is Change.SLOWER
    assert both.decided is both.usual


def test_few_steps_decide_nothing() -> None:
    one = pair([run("a", steady(STEP, 19)), run("b", steady(2 * STEP, 200))], 0, 1, "samples")
    assert one.change is Change.UNKNOWN
    assert one.reason is not None
    assert "19 steps" in one.reason
    assert not one.slower_by_more_than(0.0)


def test_rounding_is_no_difference() -> None:
    assert change(steady(STEP), steady(STEP * (1 + 1e-12))) is Change.NONE


def test_a_regression_is_one_only_if_even_the_lower_bound_exceeds_the_limit() -> None:
    first, second = run("a", step_times(200, 1)), run("b", 1.1 * step_times(200, 2))
    found = pair([first, second], 0, 1, "samples")
    assert found.whole is not None
    assert found.whole.low < found.whole.ratio < found.whole.high
    assert found.slower_by_more_than(0.05)
    assert not found.slower_by_more_than(found.whole.ratio - 1)


def test_more_work_in_the_same_time_is_faster() -> None:
    runs = [run("a", steady(STEP), samples=32), run("b", steady(STEP), samples=64)]
    assert pair(runs, 0, 1, "samples").change is Change.FASTER
    assert pair(runs, 0, 1, "steps").change is Change.NONE


@pytest.mark.parametrize(("freedom", "expected"), [(9, 3.690), (29, 3.038), (1e9, 2.807)])
def test_the_quantile_is_students(freedom: float, expected: float) -> None:
    """Tables of Student's t, two-sided 0.5 %."""
    assert ERROR_RATE / INTERVALS == 0.005
    assert quantile(freedom) == pytest.approx(expected, rel=0.01)


def test_a_drift_widens_the_bound() -> None:
    flat = step_times(400, 3)
    drifting = flat * np.linspace(0.8, 1.2, 400)
    narrow, wide = mean_level(flat).bound, mean_level(drifting).bound
    assert narrow is not None
    assert wide is not None
    assert wide > 3 * narrow


def test_a_level_without_time_has_no_bound() -> None:
    assert median_level(steady(0.0)) == Level(0.0, None, LEAST_FREEDOM)
