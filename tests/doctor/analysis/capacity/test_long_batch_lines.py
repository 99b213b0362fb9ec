"""Lines of peak memory over batch sizes, and tails of batch sizes: known truth is found, and
nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.capacity.long_batches import chance_beyond, fit_line
from mgpu_doctor.analysis.steps.step_alignment import Floats

MIB = float(1 << 20)
LEAST = 64 * MIB

bases = st.floats(0, 1e11)
slopes = st.floats(1e4, 1e8)
loads = st.lists(st.integers(1, 100_000), min_size=7, max_size=32, unique=True).map(sorted)


@given(bases, slopes, loads)
def test_an_exact_line_is_found_and_bounds_the_batch(
    base: float, slope: float, sizes: list[int]
) -> None:
    sizes = [sizes[0], *(sizes[0] + 20_000 + size for size in sizes[1:])]  # none near the first
    peaks = [base + max(slope, 1e5) * size for size in sizes]
    fitted = fit_line(sizes, peaks, 0.0)
    if sizes[-1] - sizes[1] < 0.2 * sizes[-1]:
        assert fitted is None, "they differ by too little"
        return
    assert fitted is not None
    assert fitted.points == len(sizes) - 1
    assert fitted.slope == pytest.approx(max(slope, 1e5), rel=1e-3)
    assert fitted.full(fitted.peak(2.0 * sizes[-1])) == pytest.approx(2 * sizes[-1], rel=1e-2)


@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.02))
def test_what_does_not_fit_for_sure_lies_beyond_the_line(seed: int, noise: float) -> None:
    random = np.random.default_rng(seed)
    sizes = np.sort(random.uniform(100, 1000, 12))
    peaks = np.sort(4e9 + sizes * 8e6 * (1 + random.normal(0, noise, 12)))
    fitted = fit_line(list(sizes), list(peaks), LEAST)
    if fitted is not None:
        room = fitted.peak(2000.0)
        assert (fitted.full(room) or np.inf) >= 2000.0


@given(st.integers(0, 2**32 - 1))
def test_peaks_that_rise_by_themselves_are_no_line_over_batches(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = np.maximum.accumulate(random.lognormal(6, 0.6, 12))
    peaks = np.cumsum(random.exponential(100 * MIB, 12))
    constant = [512.0] * 12
    assert fit_line(constant, list(peaks), LEAST) is None, "batches do not vary"
    assert fit_line(list(sizes), [4e9] * 12, LEAST) is None, "peaks do not"
    assert fit_line(list(sizes[:4]), list(peaks[:4]), LEAST) is None, "too few"


def test_what_the_first_rungs_hide_is_left_out() -> None:
    sizes = [100, 200, 300, 400, 500, 600, 700, 800]
    hidden = [max(5e9, 4e9 + 5e6 * size) for size in sizes]
    fitted = fit_line(sizes, hidden, LEAST)
    assert fitted is not None
    assert fitted.points == 6
    assert fitted.slope == pytest.approx(5e6)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["exponential", "uniform", "normal"]))
def test_a_rare_batch_is_not_reported_to_be_common(seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    draws: dict[str, Callable[[int], Floats]] = {
        "exponential": lambda count: random.exponential(500, count),
        "uniform": lambda count: random.uniform(0, 1000, count),
        "normal": lambda count: random.normal(2000, 300, count),
    }
    draw = draws[kind]
    rare = float(np.quantile(draw(20_000), 0.999))
    chance = chance_beyond(draw(1000), rare)
    assert chance is not None
    assert chance < 0.02


def test_exponential_sizes_are_predicted_within_a_factor() -> None:
    random = np.random.default_rng(3)
    chance = chance_beyond(random.exponential(500, 2000), 500 * np.log(10_000))
    assert chance == pytest.approx(1e-4, rel=0.9)


def test_a_size_that_is_a_bound_is_never_passed() -> None:
    random = np.random.default_rng(1)
    cut = np.minimum(random.lognormal(6, 1, 500), 1024.0)
    assert chance_beyond(cut, 1025.0) == 0.0
    assert chance_beyond(cut, 600.0) == pytest.approx((cut > 600).mean())
    assert chance_beyond(np.full(500, 64.0), 65.0) is None
    assert chance_beyond(random.lognormal(6, 1, 100), 5000.0) is None, "too few"


@pytest.mark.parametrize(("times", "bound"), [(2, False), (3, True)])
def test_the_largest_size_is_a_bound_if_it_came_three_times(times: int, bound: bool) -> None:
    drawn = -500 * np.log1p(-(np.arange(1000) + 0.5) / 1000)
    sizes = np.append(drawn, np.full(times - 1, drawn[-1]))
    beyond = [chance_beyond(sizes, size) for size in (drawn[-1], 1.1 * drawn[-1])]
    assert [chance == 0 for chance in beyond] == [bound, bound]
    if bound:
        assert chance_beyond(sizes, drawn[-2]) == pytest.approx(3 / 1002)


@pytest.mark.parametrize(("count", "known"), [(149, False), (150, True)])
def test_150_batches_foretell_larger_ones(count: int, known: bool) -> None:
    assert (chance_beyond(np.arange(1.0, count + 1), 160.0) is not None) is known
    and_unknown = np.append(np.zeros(100), np.arange(1.0, count + 1))
    assert (chance_beyond(and_unknown, 160.0) is not None) is known


def test_common_sizes_are_counted_and_rare_ones_follow_the_tail() -> None:
    sizes = np.arange(1.0, 1001.0)
    assert chance_beyond(sizes, 600.0) == pytest.approx(0.4)
    assert chance_beyond(sizes, 950.0) == pytest.approx(0.05, rel=0.05)
    assert chance_beyond(sizes, 1100.0) == 0, "sizes that are spread evenly have an end"
    drawn = -500 * np.log1p(-(np.arange(1000) + 0.5) / 1000)
    beyond = chance_beyond(drawn, 500 * np.log(10_000))
    assert beyond == pytest.approx(1e-4, rel=0.4)


@pytest.mark.parametrize(
    ("sizes", "peaks", "least", "is_line"),
    [
        ([1, 100, 200, 300, 400, 500], [1.0, 10, 20, 30, 40, 50], 40, True),
        ([1, 100, 200, 300, 400, 500], [1.0, 10, 20, 30, 40, 50], 40.001, False),
        ([1, 100, 200, 300, 400], [1.0, 10, 20, 30, 40], 0, False),
        ([1, 100, 200, 300, 300, 400], [1.0, 10, 20, 30, 30, 40], 0, True),
        ([1, 100, 200, 300, 300, 300], [1.0, 10, 20, 30, 30, 30], 0, False),
        ([1, 400, 425, 450, 475, 500], [1.0, 40, 42.5, 45, 47.5, 50], 0, True),
        ([1, 401, 425, 450, 475, 500], [1.0, 40, 42.5, 45, 47.5, 50], 0, False),
        ([1, 100, 200, 300, 400, 500], [1.0, 50, 40, 30, 20, 50.1], 0, False),
    ],
)
def test_when_peaks_are_a_line_over_batches(
    sizes: list[float], peaks: list[float], least: float, is_line: bool
) -> None:
    """The first point is left out; five others with four sizes that span a fifth are needed."""
    assert (fit_line(sizes, peaks, least) is not None) is is_line


def test_the_interval_around_a_line_is_students() -> None:
    sizes = [1.0, 100, 200, 300, 400, 500, 600]
    fitted = fit_line(sizes, [0, 101, 199, 301, 399, 501, 599], 0)
    assert fitted is not None
    x, y = np.array(sizes[1:]), np.array([101.0, 199, 301, 399, 501, 599])
    slope, base = np.polyfit(x, y, 1)
    assert (fitted.slope, fitted.base) == pytest.approx((slope, base))
    error = np.sqrt(((y - base - slope * x) ** 2).sum() / 4)
    spread = ((x - 350) ** 2).sum()
    half = 2.776 * error * np.sqrt(1 + 1 / 6 + (1000 - 350) ** 2 / spread)
    assert fitted.either_way(1000) == pytest.approx(half, rel=0.01)
    full = fitted.full(2000.0)
    assert full is not None
    assert fitted.peak(full) - fitted.either_way(full) == pytest.approx(2000)
