"""How often the live screen requests frames, and what happens without any."""

from __future__ import annotations

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
