"""Jobs which a neighbour disturbed are run again, a bounded number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.support.disturbed_runs import (
    BEAT,
    MOST_STOLEN,
    TRIES,
    Clocks,
    Heartbeats,
    RepeatDisturbed,
    WakeUpDelays,
    read_clocks,
)


def neighbours(cores: Sequence[float]) -> Callable[[], Clocks]:
    """Clocks of attempts of ten seconds on one core each, beside which others take these."""
    taken = own = wall = 0.0
    readings = []
    for more in cores:
        readings.append(Clocks(taken, own, wall))
        taken, own, wall = taken + 10 * (1 + more), own + 10, wall + 10
        readings.append(Clocks(taken, own, wall))
    return iter(readings).__next__


class Undisturbed(Heartbeats):
    def stolen(self) -> float:
        return 0.0


class StolenAtFirst(Heartbeats):
    """The first run loses a core for a moment that no average shows."""

    runs = 0

    def stolen(self) -> float:
        StolenAtFirst.runs += 1
        return 2 * MOST_STOLEN if StolenAtFirst.runs == 1 else 0.0


def test_a_core_that_stood_still_for_a_moment_is_a_disturbance() -> None:
    ran: list[int] = []
    patience = RepeatDisturbed(clocks=neighbours([0.0, 0.0]), heartbeats=StolenAtFirst)
    patience(lambda: ran.append(1))
    assert len(ran) == 2


def pulse_of(lateness: Sequence[float]) -> WakeUpDelays:
    """What wake-ups with these seconds of lateness, one after the other, leave."""
    pulse, clock = WakeUpDelays(), 0.0
    for late in lateness:
        pulse.beat(clock + BEAT, clock + BEAT + late)
        clock += BEAT + late
    return pulse


def test_a_pulse_sums_up_what_came_late_within_a_second() -> None:
    steady = [0.002] * 500
    assert pulse_of(steady).worst < MOST_STOLEN / 2
    assert pulse_of([*steady, 0.3, *steady, 0.2]).worst == pytest.approx(0.3, abs=0.1)
    assert pulse_of([*steady, *[0.06] * 5, *steady]).worst == pytest.approx(0.3, abs=0.1)


def test_heartbeats_measure_every_core() -> None:
    with Heartbeats() as heartbeats:
        ended = read_clocks().wall + 3 * BEAT
        while read_clocks().wall < ended:
            pass
    assert 0.0 < heartbeats.stolen() < 60.0


@pytest.mark.parametrize(
    ("cores", "attempts"),
    [([0.0], 1), ([0.5, 0.02], 2), ([0.5, 0.2, 0.0], 3), ([0.5] * TRIES, TRIES)],
)
def test_the_job_runs_again_until_the_machine_was_its_own(
    cores: list[float], attempts: int
) -> None:
    ran: list[int] = []
    RepeatDisturbed(clocks=neighbours(cores), heartbeats=Undisturbed)(lambda: ran.append(1))
    assert len(ran) == attempts


def test_patience_ends() -> None:
    patience = RepeatDisturbed(repeats=3, clocks=neighbours([0.5] * 6), heartbeats=Undisturbed)
    ran: list[int] = []
    for _ in range(3):
        patience(lambda: ran.append(1))
    assert len(ran) == TRIES + 2 + 1


def test_the_real_clocks_go_forward() -> None:
    before = read_clocks()
    assert sum(number * number for number in range(100_000)) > 0
    after = read_clocks()
    assert after.wall > before.wall
    assert after.own >= before.own
    assert after.taken >= before.taken
