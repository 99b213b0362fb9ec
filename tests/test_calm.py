"""Jobs which a neighbour disturbed are run again, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.calm import TRIES, Clocks, Patience, now


def neighbours(cores: Sequence[float]) -> Callable[[], Clocks]:
    """Clocks of attempts of ten seconds on one core each, beside which others take these."""
    taken = own = wall = 0.0
    readings = []
    for more in cores:
        readings.append(Clocks(taken, own, wall))
        taken, own, wall = taken + 10 * (1 + more), own + 10, wall + 10
        readings.append(Clocks(taken, own, wall))
    return iter(readings).__next__


@pytest.mark.parametrize(
    ("cores", "attempts"),
    [([0.0], 1), ([0.5, 0.02], 2), ([0.5, 0.2, 0.0], 3), ([0.5] * TRIES, TRIES)],
)
def test_the_job_runs_again_until_the_machine_was_its_own(
    cores: list[float], attempts: int
) -> None:
    ran: list[int] = []
    Patience(clocks=neighbours(cores))(lambda: ran.append(1))
    assert len(ran) == attempts


def test_patience_ends() -> None:
    patience = Patience(repeats=3, clocks=neighbours([0.5] * 6))
    ran: list[int] = []
    for _ in range(3):
        patience(lambda: ran.append(1))
    assert len(ran) == TRIES + 2 + 1


def test_the_real_clocks_go_forward() -> None:
    before = now()
    assert sum(number * number for number in range(100_000)) > 0
    after = now()
    assert after.wall > before.wall
    assert after.own >= before.own
    assert after.taken >= before.taken
