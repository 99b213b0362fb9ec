"""Times the phases of a step on the device's own clock, without ever waiting for the device.

While a GPU computes, the host only queues work and runs ahead of it: moments that the host took say
when work was queued. A `DeviceTimer` therefore puts an event into the device's queue at every mark
of some turns of the training loop. Once the last event of a turn has completed, the marks are
played to a copy of the step engine with the device's times, which divides the turn into the same
phases as it does for a CPU. An event on an idle device completes when it is recorded and on a busy
one when the queue gets there, so a wait for data that the queued work hides is not counted.

Nothing here synchronizes: a turn whose events have not completed is asked again at the end of the
next turn, and no further one is timed while too many wait. Which turns are timed follows from the
number of collectives, which is equal on all ranks, so that all ranks time the same ones.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import pairwise
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing import Protocol

    from .step_engine import Steps
    from .step_marks import Data, Mark
    from .step_segments import Step

    class DeviceClock(Protocol):
        """Events in the queue of one device: CUDA events, those of a simulator, …"""

        def record(self) -> Any | None:
            """A new event at the end of the queue. None: not now (a graph is being captured, or too
            many events are in use)."""

        def has_completed(self, event: Any) -> bool:
            """Whether the device has reached it; False while a graph is being captured."""

        def nanoseconds_between(self, earlier: Any, later: Any) -> int:
            """Device time from one completed event to another, at most some seconds apart."""

        def give_back(self, events: list[Any]) -> None:
            """These events are not needed any more."""

    EngineCopy = Callable[[int, Callable[[Step], None]], "Steps | None"]
    """A copy of the step engine whose turn begins at that moment (ns) and which reports its steps
    to that function; None: the engine is in the midst of something."""


MOST_PENDING = 16
"""Turns whose events have not completed yet: no other is timed then."""
MOST_MARKS = 256
"""Marks of one turn; longer turns are not timed."""
MOST_INTERVAL = 4096
SHARE, LEAST_NS = 0.0005, 2_000
"""What timing may cost per step: this share of its time, or so many ns for steps of less than 4 ms
(0.2 % of a step of 1 ms)."""
WINDOW_NS = 10_000_000_000
"""How long one estimate of the offset between host and device clock lasts: the clocks drift apart
by up to 50 millionths, and an interval in float32 milliseconds is exact to 1 µs up to 16 s."""


class ToldStep(NamedTuple):
    """What the timer must know of the step that the host's engine reported."""

    record: int
    """Sequence number of its record in the box."""
    wall: int
    """ns"""


class DeviceStep(NamedTuple):
    """One step on the device's clock."""

    record: int
    """Sequence number of the host's record of this step."""
    wall: int
    """ns"""
    phases: tuple[int, ...]
    """ns by `layout.PHASES`"""
    least_lead: int
    """ns that the host was ahead of the device when the last backward pass began, at least; -1:
    there was none."""
    most_lead: int
    """The same, at most; -1: unknown."""


def is_sampled(key: int, interval: int) -> bool:
    """Whether the turn that begins at `key` is timed where one in `interval` is (a power of two).

    Keys advance by a constant, so a remainder would favour some phase of the program; the high bits
    of a product with the golden ratio are spread evenly (Knuth, The Art of Computer Programming,
    vol. 3, 6.4). Turns of a longer interval are also turns of every shorter one: ranks with
    different intervals still share turns."""
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) * interval >> 64 == 0


class Tape:
    """The marks of one turn, with their events."""

    __slots__ = ("data", "engine", "events", "host", "marks", "record", "steps")

    def __init__(self, engine: Steps, steps: list[Step], event: Any, now: int) -> None:
        self.engine = engine
        """A copy of the step engine as it was when the turn began."""
        self.steps = steps
        """What it reports."""
        self.marks: list[Mark] = []
        self.data: list[Data] = []
        self.events = [event]
        """One more than marks: the first is the beginning."""
        self.host = [now]
        """When the host recorded each, ns."""
        self.record = 0


class ClockOffset:
    """Bounds of the offset between the host's clock and the device's.

    An event is recorded before it completes, and seen to be complete after it has. Each event
    narrows the bounds: closely wherever the device was idle, or the host waited for it."""

    def __init__(self) -> None:
        self.anchor: Any = None
        self.since = 0
        self.least: float = -inf
        self.most: float = inf

    def restart(self, anchor: Any, now: int) -> None:
        """Device times count from the event `anchor` on, recorded at `now`."""
        self.anchor, self.since = anchor, now
        self.least, self.most = -inf, inf

    def narrow(self, host: list[int], device: list[int], seen: int) -> None:
        """Events recorded at `host` completed at `device`; the last was seen complete at `seen`."""
        self.least = max(self.least, *(at - done for at, done in zip(host, device, strict=True)))
        self.most = min(self.most, seen - device[-1])

    def lead(self, host: int, device: int) -> tuple[int, int]:
        """How long after it was recorded an event completed: at least, and at most; -1: unknown."""
        most = device + self.most - host
        return int(max(0, device + self.least - host)), int(most) if most < WINDOW_NS else -1


class DeviceTimer:
    """Times turns of the training loop on the device. All calls come from the thread that trains,
    each after the step engine has been given the mark."""

    def __init__(
        self,
        clock: DeviceClock,
        copy_engine: EngineCopy,
        report: Callable[[DeviceStep], None],
        begins_backward: Collection[Mark],
        host_clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.interval = 1
        """One turn in so many is timed; a power of two."""
        self.dropped = 0
        """Timed turns that gave nothing: they held more than marks, or the events ran out."""
        self.spent_ns = 0
        """Host time that all this has cost."""
        self._clock = clock
        self._copy_engine = copy_engine
        self._report = report
        self._begins_backward = frozenset(begins_backward)
        self._now = host_clock
        self._tape: Tape | None = None
        self._pending: deque[Tape] = deque()
        self._offset = ClockOffset()
        self._timed = 0
        self._usual_wall = 0.0

    def mark(self, mark: Mark, data: Data) -> None:
        """A mark within the turn."""
        if self._tape is not None:
            began = self._now()
            self._record(self._tape, mark, data, began)
            self.spent_ns += self._now() - began

    def turn_ended(self, mark: Mark, data: Data, told: ToldStep | None, key: int) -> None:
        """This mark ended the turn, and begins the next one.

        `told`: the step that the engine reported; None: several, or one that had ended before.
        `key`: a number that is equal on all ranks at the same turn."""
        began = self._now()
        tape = self._tape
        if tape is not None and told is None:
            self.drop()
        elif tape is not None and told is not None and self._record(tape, mark, data, began):
            self._tape = None
            tape.record = told.record
            self._pending.append(tape)
        while self._pending and self._clock.has_completed(self._pending[0].events[-1]):
            self._play(self._pending.popleft(), self._now())
        self.spent_ns += self._now() - began
        if told is not None:
            self._choose_interval(told.wall)
            if is_sampled(key, self.interval) and len(self._pending) < MOST_PENDING:
                self._begin()

    def drop(self) -> None:
        """The turn that runs now cannot be timed."""
        if self._tape is not None:
            self.dropped += 1
            self._clock.give_back(self._tape.events)
            self._tape = None

    def _begin(self) -> None:
        now = self._now()
        steps: list[Step] = []
        engine = self._copy_engine(0, steps.append)
        event = None if engine is None else self._clock.record()
        if engine is not None and event is not None:
            self._tape = Tape(engine, steps, event, now)
            self._timed += 1
        self.spent_ns += self._now() - now

    def _record(self, tape: Tape, mark: Mark, data: Data, now: int) -> bool:
        event = self._clock.record() if len(tape.marks) < MOST_MARKS else None
        if event is None:
            self.drop()
            return False
        tape.marks.append(mark)
        tape.data.append(data)
        tape.events.append(event)
        tape.host.append(now)
        return True

    def _choose_interval(self, wall: int) -> None:
        """The least one by which timing costs no more than it may."""
        self._usual_wall += (wall - self._usual_wall) / (8 if self._usual_wall else 1)
        if self._timed:
            allowed = max(SHARE * self._usual_wall, LEAST_NS)
            needed = self.spent_ns / self._timed / allowed
            self.interval = min(1 << max(0, ceil(log2(needed))), MOST_INTERVAL) if needed else 1

    def _play(self, tape: Tape, seen: int) -> None:
        """Has the copy of the engine divide the turn by the device's times, and reports it."""
        events, between = tape.events, self._clock.nanoseconds_between
        moments = [0]
        for earlier, later in pairwise(events):
            moments.append(moments[-1] + max(0, between(earlier, later)))
        for mark, data, moment in zip(tape.marks, tape.data, moments[1:], strict=True):
            mark(tape.engine, moment, *data)
        if [(step.start, step.end) for step in tape.steps] == [(0, moments[-1])]:
            lead = self._lead(tape, moments, seen)
            (step,) = tape.steps
            self._report(DeviceStep(tape.record, moments[-1], step.phases, *lead))
        else:
            self.dropped += 1
        self._clock.give_back([event for event in events if event is not self._offset.anchor])

    def _lead(self, tape: Tape, moments: list[int], seen: int) -> tuple[int, int]:
        """How far the host was ahead when the last backward pass began, as in `DeviceStep`."""
        offset = self._offset
        if offset.anchor is None or tape.host[0] - offset.since > WINDOW_NS:
            if offset.anchor is not None:
                self._clock.give_back([offset.anchor])
            offset.restart(tape.events[0], tape.host[0])
        first = 0
        if tape.events[0] is not offset.anchor:
            first = self._clock.nanoseconds_between(offset.anchor, tape.events[0])
        device = [first + moment for moment in moments]
        offset.narrow(tape.host, device, seen)
        for at in reversed(range(len(tape.marks))):
            if tape.marks[at] in self._begins_backward:
                return offset.lead(tape.host[at + 1], device[at + 1])
        return -1, -1
