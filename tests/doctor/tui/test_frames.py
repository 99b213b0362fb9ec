"""How often the live screen requests frames, and what happens without any."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.tui import frame_thread
from mgpu_doctor.tui.frame_thread import FrameMade, FrameMissed, Frames
from tests.support.frames import HEALTHY

INTERVAL = 1.0
TOOK = 0.75


class Machine:
    """A clock, an event that is never set, and a source that takes time: nobody really waits."""

    def __init__(self, computes: float = 0.0) -> None:
        self.now = self.computed = 0.0
        self.computes = computes
        self.rests: list[float] = []
        self.trouble: Exception | None = None
        self.closed = False

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.computed

    def wait(self, seconds: float) -> bool:
        self.rests.append(seconds)
        self.now += seconds
        return False

    def set(self) -> None:
        pass

    def clear(self) -> None:
        pass

    def frame(self, passed: float) -> Frame:  # noqa: ARG002 - a source is told
        self.now += TOOK
        self.computed += self.computes
        if self.trouble is not None:
            raise self.trouble
        return HEALTHY

    def close(self) -> None:
        self.closed = True


def made_by(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Frames:
    monkeypatch.setattr(frame_thread, "time", machine)
    made = Frames(machine, INTERVAL)
    monkeypatch.setattr(made, "_wake", machine)
    return made


@pytest.mark.parametrize(("computes", "rest"), [(0.0, 0.25), (0.05, 0.25), (0.5, 2.0)])
def test_it_rests_for_what_it_computed_not_for_what_it_waited(
    monkeypatch: pytest.MonkeyPatch, computes: float, rest: float
) -> None:
    machine = Machine(computes)
    made = made_by(machine, monkeypatch)
    coming = iter(made)
    first, second = next(coming), next(coming)
    assert machine.rests == pytest.approx([rest])
    assert isinstance(first, FrameMade)
    assert isinstance(second, FrameMade)
    assert first.frame.interval == INTERVAL
    assert (first.frame.late, second.frame.late) == pytest.approx((0.0, TOOK + rest - INTERVAL))


def test_only_a_first_frame_must_come(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    coming = iter(made_by(machine, monkeypatch))
    next(coming)
    machine.trouble = OSError("gone")
    missed = next(coming)
    assert isinstance(missed, FrameMissed)
    assert missed.why == "OSError: gone"
    with pytest.raises(OSError, match="gone"):
        next(iter(made_by(machine, monkeypatch)))


def test_sources_are_closed_when_they_are_shown_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = Machine(), Machine()
    made = made_by(before, monkeypatch)
    coming = iter(made)
    next(coming)
    made.turn_to(after)
    next(coming)
    assert (before.closed, after.closed) == (True, False)
    made.end()
    assert list(coming) == []
    assert after.closed


class Announcing(Machine):
    """A source that announces steps; frames of it take no time."""

    def __init__(self, computes: float = 0.0) -> None:
        super().__init__(computes)
        self.announce: Callable[[], None] | None = None

    def announce_steps(self, call: Callable[[], None]) -> None:
        self.announce = call

    def frame(self, passed: float) -> Frame:
        made = super().frame(passed)
        self.now -= TOOK
        return made


class Step(Machine):
    """The event of a step, which comes after so many seconds; it shares the clock of another."""

    def __init__(self, clock: Machine, after: float) -> None:
        super().__init__()
        self.clock = clock
        self.after = after

    def wait(self, seconds: float) -> bool:
        self.clock.now += min(seconds, self.after)
        return self.after < seconds


@pytest.mark.parametrize(
    ("after", "computes", "expected"),
    [(0.0, 0.0, 0.5), (0.2, 0.0, 0.7), (0.9, 0.0, 1.0), (0.0, 0.2, 0.8)],
)
def test_a_step_brings_the_next_frame_early_but_not_too_early(
    monkeypatch: pytest.MonkeyPatch, after: float, computes: float, expected: float
) -> None:
    machine = Announcing(computes)
    monkeypatch.setattr(frame_thread, "time", machine)
    made = Frames(machine, INTERVAL)
    assert machine.announce is not None
    monkeypatch.setattr(made, "_wake", Step(machine, after=100.0))
    monkeypatch.setattr(made, "_step", Step(machine, after))
    coming = iter(made)
    next(coming)
    began = machine.now
    second = next(coming)
    assert machine.now - began == pytest.approx(expected)
    assert isinstance(second, FrameMade)
    assert second.frame.late == 0.0


def test_a_step_does_not_wait_because_a_frame_was_due_just_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Announcing()
    monkeypatch.setattr(frame_thread, "time", machine)
    made = Frames(machine, INTERVAL)
    monkeypatch.setattr(made, "_wake", Step(machine, after=100.0))
    times = []
    coming = iter(made)
    for after in (100.0, 100.0, 0.1, 0.0, 0.0, 0.0):
        monkeypatch.setattr(made, "_step", Step(machine, after))
        next(coming)
        times.append(machine.now)
    assert times == pytest.approx([0.0, 1.0, 1.1, 1.6, 2.1, 2.6])


def test_a_source_that_is_turned_to_announces_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_by(Machine(), monkeypatch)
    after = Announcing()
    made.turn_to(after)
    assert after.announce is not None
    made._step.clear()
    after.announce()
    assert made._step.is_set()
