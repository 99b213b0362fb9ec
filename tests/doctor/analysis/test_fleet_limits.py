"""Jobs of many ranks, by hand: the limits, a rank's own noise, and both sides of what counts as
lasting."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from mgpu_doctor.analysis.steps.step_alignment import join
from mgpu_doctor.analysis.steps.work_and_wait import attribute
from mgpu_doctor.analysis.stragglers.fleet import (
    Usual,
    find_in_large_job,
    lasting,
    learn,
    level_limit,
    rise_limit,
)
from tests.support.per_step_jobs import case_of_seconds, healthy
from tests.support.synthetic import Synthetic

USUAL = Usual(
    scale=0.1,
    variance=1.0,
    alike=0.0,
    centre=0.0,
    lengths=np.array([5, 100]),
    weights=np.zeros(2),
    shifts=np.zeros(2),
    errors=np.ones(2),
)


@pytest.mark.parametrize(("ranks", "steps"), [(32, 100), (512, 10_000), (10_000, 10**6)])
def test_the_limit_of_a_rise_by_integration(ranks: int, steps: int) -> None:
    """Siegmund and Venkatraman 1995: the time between false alarms of Gaussian noise."""
    limit = rise_limit(ranks, steps)
    at = np.linspace(0, limit, 100_001)
    density = at * np.exp(-1.166 * at)
    overshoot = float(((density[1:] + density[:-1]) / 2).sum() * at[1])
    between = math.sqrt(2 * math.pi) * math.exp(limit**2 / 2) / (limit * overshoot)
    assert between == pytest.approx(max(ranks * steps / 0.02, 1e6), rel=1e-6)


@pytest.mark.parametrize(("ranks", "chance"), [(32, 1e-4), (512, 0.01 / 512), (5000, 0.01 / 5000)])
def test_the_limit_of_a_level_by_hand(ranks: int, chance: float) -> None:
    gauss = NormalDist().inv_cdf(1 - chance)
    wider = 1 + (gauss**2 + 1) / (4 * 0.37 * min(ranks, 512))
    assert level_limit(ranks) == pytest.approx(gauss * wider)


def lasting_change(
    series: np.ndarray, *, rise: float = 0.0, level: float = 0.0, floor: float = 0.1
) -> tuple[float, float, int] | None:
    """Effect, certainty and onset."""
    one = lasting(series, USUAL, rise=rise, level=level, floor=floor)
    return None if one is None else (one.effect, one.certainty, one.onset)


def test_a_level_counts_from_its_limit_and_from_the_floor() -> None:
    series = np.full(100, 0.5)
    assert lasting_change(series, level=1.0, floor=0.5) == (0.5, 1.0, 0)
    assert lasting_change(series, level=3.0, floor=0.125) == pytest.approx((0.5, 3.0, 0))
    assert lasting_change(series, level=9.0, floor=0.125) == (0.5, 4.0, 0)
    assert lasting_change(series, level=math.nextafter(1.0, 0), floor=0.5) is None
    assert lasting_change(series, level=1.0, floor=math.nextafter(0.5, 1)) is None
    assert lasting_change(series, rise=9.0, floor=0.5) is None, "it did not rise"


@pytest.mark.parametrize(
    ("start", "height", "rise", "onset"),
    [
        (40, 1.0, 1.0, 40),
        (40, 1.0, 0.9, 40),
        (40, 0.08, 1.0, 40),
        (40, 0.08, 0.9, None),
        (5, 1.0, 1.0, 5),
        (4, 1.0, 1.0, None),
    ],
)
def test_a_rise_counts_from_its_limit_or_by_a_clear_change_of_the_level(
    start: int, height: float, rise: float, onset: int | None
) -> None:
    series = np.where(np.arange(100) < start, 0.0, height)
    one = lasting(series, USUAL, rise=rise, level=0.0, floor=0.05)
    sure = rise >= 1
    assert (one.onset if one is not None else None) == (onset if sure else None)
    if one is not None:
        assert one.effect == pytest.approx(height)
        assert one.positive == 1.0


def test_an_excess_that_was_there_before_is_no_rise() -> None:
    half = np.where(np.arange(100) < 40, 0.5, 1.0)
    less = np.where(np.arange(100) < 40, 0.49, 1.0)
    assert lasting_change(half, rise=2.0) is None
    assert lasting_change(less, rise=2.0) is not None


@pytest.mark.parametrize(("positive", "lasts"), [(70, True), (69, False)])
def test_most_steps_must_show_it(positive: int, lasts: bool) -> None:
    shown = np.arange(100) % 10 < 7
    series = np.where(shown, 0.2, -0.001)
    if positive < 70:
        series[np.flatnonzero(shown)[50]] = -0.001
    one = lasting(series, USUAL, rise=0.0, level=5.0, floor=0.05)
    assert (one is not None) is lasts


@pytest.mark.parametrize(("end", "lasts"), [(8, False), (4, True)])
def test_an_excess_that_is_over_for_eight_steps_does_not_last(end: int, lasts: bool) -> None:
    series = np.full(100, 0.5)
    series[-end:] = 0.01
    assert (lasting_change(series, level=5.0) is not None) is lasts


def test_an_excess_that_fell_by_half_does_not_last() -> None:
    fell = np.concatenate([np.full(50, 0.9), np.full(50, 0.1)])
    assert lasting_change(fell, level=5.0) is None
    assert lasting_change(fell[::-1], level=5.0, rise=5.0) == pytest.approx((0.9, 5.0, 50))


@pytest.mark.parametrize("times", [1.0, 4.0])
def test_a_rank_that_is_noisier_than_the_others_is_less_sure(times: float) -> None:
    around = times * 0.1 * np.random.default_rng(3).standard_normal(400)
    one = lasting(2.0 + around, USUAL, rise=0.0, level=8.0, floor=0.01)
    assert one is not None
    centred = around - np.median(around)
    own = 1.4826 * float(np.median(np.abs(centred))) * (1 - 1.65 / math.sqrt(400))
    scale = max(0.1, own)
    assert (scale == 0.1) is (times == 1.0)
    assert one.onset == 0
    assert one.certainty == pytest.approx(8.0 * 0.1 / scale, rel=0.02)


def test_a_rank_whose_steps_are_more_alike_is_less_sure() -> None:
    around = 0.05 * np.random.default_rng(1).standard_normal(400)
    for step in range(1, 400):
        around[step] += 0.8 * around[step - 1]
    one = lasting(2.0 + around, USUAL, rise=0.0, level=8.0, floor=0.01)
    assert one is not None
    centred = around - np.median(around)
    alike = float(centred[1:] @ centred[:-1] / (centred @ centred)) - 0.1
    assert one.certainty == pytest.approx(8.0 * math.sqrt((1 - alike) / (1 + alike)), rel=0.2)


def test_short_steps_count_as_much_as_long_ones() -> None:
    """A third of the steps takes half as long on all ranks."""
    work = healthy(Synthetic(ranks=40, steps=90))
    for phase in work:
        work[phase][::3] *= 0.5
        work[phase][:, 7] *= 1.3
    joined = join(case_of_seconds(work).ranks)
    attribution = attribute(joined)
    result = find_in_large_job(joined, attribution, 0.02 * joined.step_seconds)
    assert set(result) == {7}
    usual = float(np.nanmedian(attribution.typical))
    assert result[7][0].effect == pytest.approx(0.3 * usual, rel=0.05)


def test_levels_of_ranks_are_no_noise_of_their_steps() -> None:
    values = 0.03 * np.random.default_rng(0).standard_normal((200, 64))
    plain = learn(values, resolution=1e-4)
    shifted = learn(values + 5.0, resolution=1e-4)
    assert shifted.scale == pytest.approx(plain.scale) == pytest.approx(0.03, rel=0.05)
    assert shifted.centre == pytest.approx(plain.centre + 5.0)
    assert shifted.errors == pytest.approx(plain.errors)
    apart = values + np.where(np.arange(64) % 2, 0.3, -0.3)
    uneven = learn(apart, resolution=1e-4)
    assert uneven.scale == pytest.approx(plain.scale)
    assert (uneven.weights[:-1] > 0.9).all(), "differences that are there for good are kept"
    assert uneven.weights[-1] == 0
