"""Regular distances, and those that occur by chance."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mgpu_doctor.analysis.statistics.significance import period, tail_bound


@given(st.integers(1, 60), st.data())
def test_the_bound_is_never_below_the_chance(trials: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, trials))
    share = data.draw(st.floats(0.01, 0.99))
    chance = sum(
        comb(trials, n) * share**n * (1 - share) ** (trials - n) for n in range(hits, trials + 1)
    )
    assert tail_bound(hits, trials, share) >= min(1.0, chance) - 1e-9


def test_all_of_them_is_the_power() -> None:
    assert tail_bound(6, 6, 0.5) == pytest.approx(1 / 64)
    assert tail_bound(3, 6, 0.5) == 1.0


@pytest.mark.parametrize("every", [2, 3, 7, 20, 100])
def test_what_comes_every_n_steps(every: int) -> None:
    found = period(np.arange(3, 3 + 8 * every, every))
    assert found is not None
    assert found.steps == every
    assert found.chance < 1e-3


def test_one_that_is_missed_and_some_drift_do_not_hide_it() -> None:
    found = period(np.array([40, 80, 121, 160, 240, 279, 320]))
    assert found is not None
    assert found.steps == pytest.approx(40, abs=0.5)


def test_what_comes_in_every_step_proves_nothing() -> None:
    found = period(np.arange(50))
    assert found is not None
    assert (found.steps, found.chance) == (1.0, 1.0)


def test_two_have_no_period() -> None:
    assert period(np.array([20, 40])) is None


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_random_moments_are_hardly_ever_regular(rate: float) -> None:
    random = np.random.default_rng(1)
    chances = []
    for _ in range(300):
        starts = np.flatnonzero(random.random(400) < rate)
        found = period(starts)
        chances.append(1.0 if found is None else found.chance)
    assert np.mean(np.array(chances) <= 0.01) <= 0.01
