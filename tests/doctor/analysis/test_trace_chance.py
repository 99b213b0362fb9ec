"""Traces with few and many steps: what exceeds chance, and that healthy noise does not."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mgpu_doctor.analysis.statistics.significance import last_so_often, signed_rank
from mgpu_doctor.analysis.traces.joined_collectives import Waits
from mgpu_doctor.analysis.traces.late_rank import Late, find_late


def late(own: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Late | None:
    waits = own.max(axis=1, keepdims=True) - own
    ranks = tuple(range(own.shape[1]))
    return find_late(Waits(ranks, waits, "step", len(own)), float(own.max(axis=1).mean()))


def test_signed_ranks_are_those_of_all_signs() -> None:
    """Against every sign that five values may have."""
    sizes = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    below = {
        signs: sum(s for s, up in zip(sizes, signs, strict=True) if not up)
        for signs in product((False, True), repeat=5)
    }
    for signs, least in below.items():
        series = np.where(signs, sizes, -sizes)
        chance = sum(one <= least for one in below.values()) / len(below)
        assert signed_rank(series) == pytest.approx(chance)
    assert last_so_often(3, 3, 2) == pytest.approx(1 / 8)
    assert last_so_often(0, 5, 4) == pytest.approx(1.0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_noise_alone_names_nobody(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    jobs = [10 + np.abs(random.standard_t(3, (12, ranks))) for _ in range(200)]
    assert sum(late(own) is not None for own in jobs) <= 1
    assert late(np.full((12, ranks), 10.0)) is None


def test_a_late_rank_is_found_in_few_steps() -> None:
    own = 10 + 0.1 * np.random.default_rng(1).random((8, 4))
    own[:, 2] += 2
    found = late(own)
    assert found is not None
    assert found.rank == 2
    assert found.saved == pytest.approx(2, rel=0.05)
    own[:, 1] += 2
    assert late(own) is None
    assert late(own[:4]) is None


@pytest.mark.parametrize(
    ("units", "cost", "is_late"),
    [(5, 1.0, True), (4, 1.0, False), (8, 0.051, True), (8, 0.049, False)],
)
def test_a_late_rank_needs_five_steps_and_a_twentieth_of_them(
    units: int, cost: float, is_late: bool
) -> None:
    waits = np.full((units, 4), cost) + 1e-6 * np.random.default_rng(0).standard_normal((units, 4))
    waits[:, 2] = 0.0
    found = find_late(Waits((0, 1, 2, 3), waits, "step", units), 1.0)
    assert (found.rank if found is not None else None) == (2 if is_late else None)


@pytest.mark.parametrize(("second", "is_late"), [(0.45, True), (0.55, False)])
def test_a_rank_that_comes_half_as_late_makes_it_nobodys_fault_alone(
    second: float, is_late: bool
) -> None:
    waits = np.full((20, 5), 1.0) + 1e-6 * np.random.default_rng(0).standard_normal((20, 5))
    waits[:, 2], waits[:, 3] = 0.0, 1 - second
    found = find_late(Waits((0, 1, 2, 3, 4), waits, "step", 20), 2.0)
    assert (found is not None) is is_late
    if found is not None:
        assert found.saved == pytest.approx(1 - second)
