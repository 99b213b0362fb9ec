"""Scaling of several runs: speed-up, efficiency, the recommended count, the fitted law."""

from __future__ import annotations

from math import log

import pytest

from mgpu_doctor.analysis.comparing.compared_run import Run
from mgpu_doctor.analysis.comparing.comparison import compared
from mgpu_doctor.analysis.comparing.scaling import Growth, Law, best, growth_of, law_of, scaling
from tests.support.compared_runs import run, steady, step_times


def weak(ranks: int, seconds: float, wait: float = 0.0, moving: float = 0.0) -> Run:
    return run(
        f"{ranks} ranks",
        steady(seconds),
        ranks=ranks,
        samples=8.0 * ranks,
        wait=wait,
        communication=moving,
    )


def strong(ranks: int, seconds: float, moving: float = 0.0) -> Run:
    return run(f"{ranks} ranks", steady(seconds), ranks=ranks, samples=64.0, communication=moving)


def test_weak_scaling_counts_the_work_that_more_ranks_do() -> None:
    runs = [weak(1, 0.04), weak(2, 0.05), weak(4, 0.16)]
    found = scaling(runs, "samples")
    assert found.growth is Growth.WEAK
    assert [run.efficiency for run in found.runs] == pytest.approx([1, 0.8, 0.25])
    ratios = [run.speed_up.ratio for run in found.runs if run.speed_up]
    assert ratios == pytest.approx([1, 1.6, 1])


def test_strong_scaling_divides_the_work() -> None:
    found = scaling([strong(4, 0.02), strong(1, 0.06)], "samples")
    assert found.growth is Growth.STRONG
    assert found.reference == 1, "the fewest ranks, wherever they stand"
    assert found.runs[0].efficiency == pytest.approx(0.75)


def test_without_the_samples_of_a_step_no_speed_up_is_reported() -> None:
    runs = [run("a", steady(0.04), samples=None), run("b", steady(0.04), ranks=2, samples=None)]
    found = compared(runs)
    assert found.unit == "steps"
    assert found.scaling.runs[1].speed_up is None
    assert found.scaling.reason
    assert found.best is None


def test_of_equal_rank_counts_steps_may_be_compared() -> None:
    runs = [run("a", steady(0.04), samples=None), run("b", steady(0.02), samples=None)]
    found = scaling(runs, "steps")
    assert found.runs[1].speed_up is not None
    assert found.runs[1].speed_up.ratio == pytest.approx(2)
    assert found.runs[1].efficiency is None


def test_the_best_is_the_fewest_ranks_that_are_not_shown_to_be_slower() -> None:
    two = run("two", step_times(200, 1), ranks=2, samples=16)
    four = run("four", 1.99 * step_times(200, 2), ranks=4, samples=32)
    ended = run("one", step_times(200, 3), ranks=1, samples=8)
    found = best([ended, four, two], "samples")
    assert found is not None
    assert (found.place, found.fastest) == (2, 1)
    clear = best([ended, four, run("t", 0.7 * step_times(200, 4), ranks=2, samples=16)], "samples")
    assert clear is not None
    assert clear.place == clear.fastest == 2


def test_a_law_that_holds_is_found_and_goes_on() -> None:
    """a + b (N - 1) + c ln N + d (N - 1)"""

    def by_law(ranks: int) -> Run:
        work, wait, moving = 0.03 + 0.002 * (ranks - 1), 0.004 * log(ranks), 0.001 * (ranks - 1)
        return weak(ranks, work + wait + moving, wait, moving)

    law = law_of([by_law(ranks) for ranks in (1, 2, 4)], Growth.WEAK)
    assert isinstance(law, Law)
    assert (law.own, law.crowding, law.waiting, law.moving) == pytest.approx(
        (0.03, 0.002, 0.004, 0.001)
    )
    assert [point.ranks for point in law.predicted] == [8, 16]
    assert law.predicted[0].total == pytest.approx(by_law(8).mean.seconds)
    assert law.margin == pytest.approx(0, abs=1e-6)


def test_the_margin_is_how_far_the_largest_count_would_have_been_missed() -> None:
    runs = [strong(1, 0.08), strong(2, 0.04), strong(4, 0.04)]  # it stops to scale
    law = law_of(runs, Growth.STRONG)
    assert isinstance(law, Law)
    assert law.margin == pytest.approx(0.5), "half the time was promised"


def test_a_count_that_was_run_twice_counts_with_its_mean() -> None:
    twice = [weak(1, 0.03), weak(1, 0.05), weak(2, 0.04), weak(4, 0.04)]
    law = law_of(twice, Growth.WEAK)
    assert isinstance(law, Law)
    assert law.own == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("runs", "growth", "expected"),
    [
        ([weak(1, 0.04), weak(2, 0.04)], Growth.WEAK, "3 rank counts"),
        ([weak(1, 0.04), weak(2, 0.04), weak(4, 0.04)], Growth.MIXED, "equally many samples"),
    ],
)
def test_where_there_is_no_law_it_says_why(runs: list[Run], growth: Growth, expected: str) -> None:
    law = law_of(runs, growth)
    assert isinstance(law, str)
    assert expected in law


def test_growth_is_distinguished_from_the_work_of_a_step() -> None:
    odd = run("odd", steady(0.04), ranks=2, samples=20)
    assert growth_of([weak(1, 0.04), odd], "samples") is Growth.MIXED
    assert growth_of([weak(2, 0.04), weak(2, 0.05)], "samples") is Growth.UNKNOWN


def test_runs_of_equal_settings_tell_the_noise_between_runs() -> None:
    runs = [weak(1, 0.04), weak(2, 0.04), weak(1, 0.044)]
    assert compared(runs).spread == pytest.approx(0.1)
    assert compared(runs[:2]).spread is None


def test_a_law_is_fitted_for_each_setting_by_itself() -> None:
    runs = [
        run(f"{kind}{ranks}", steady(0.04), ranks=ranks, samples=8.0 * ranks, settings={"k": kind})
        for kind in "xy"
        for ranks in (1, 2, 4)
    ]
    found = compared(runs)
    assert [law.places for law in found.laws] == [(0, 1, 2), (3, 4, 5)]
    assert all(law.law for law in found.laws)
    assert found.differs == ("k",)


def test_the_ideal_is_by_the_ranks_of_the_reference() -> None:
    found = scaling([weak(2, 0.04), weak(4, 0.05), weak(6, 0.04)], "samples")
    assert [run.efficiency for run in found.runs] == pytest.approx([1, 0.8, 1])
    assert [run.speed_up.ratio for run in found.runs if run.speed_up] == pytest.approx([1, 1.6, 3])
