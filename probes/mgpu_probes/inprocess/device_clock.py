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
from math import ceil, inf, isfinite, log2, nan
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

        def enter_thread(self) -> bool:
            """Prepares the calling thread, which is not the one that trains, to ask for events;
            False: it must not ask."""

    ReadLater = Callable[[], float]
    """Gives a value that the device computes within the turn, once the turn's events completed."""
    EngineCopy = Callable[[int, Callable[[Step], None]], "Steps | None"]
    """A copy of the step engine whose turn begins at that moment (ns) and which reports its steps
    to that function; None: the engine is not at the beginning of a turn."""


MOST_PENDING = 16
"""Turns whose events have not completed yet: no other is timed then."""
MOST_MARKS = 256
"""Marks of one turn; longer turns are not timed."""
MOST_INTERVAL = 4096
SHARE, LEAST_NS = 0.0005, 2_000
"""What timing may cost per step: this share of its time, or so many ns for steps of less than 4 ms
(0.2 % of a step of 1 ms)."""
FREE_NS = 20_000_000
"""What timing may cost once, ns: a job that has just begun is judged by its first steps."""
LOOKS = 8
"""Timed turns of a window in which each mark looks whether the device has reached the one before.
If it has, which is so where the device waits for the host, the clocks are known as closely as two
marks are near: the end of a turn is seen one turn later only."""
WINDOW_NS = 10_000_000_000
"""How long one estimate of the offset between host and device clock lasts: the clocks drift apart
by up to 50 millionths, and an interval in float32 milliseconds is exact to 1 µs up to 16 s."""


class DeviceStep(NamedTuple):
    """One step on the device's clock."""

    record: int
    """Number of the host's record of this step."""
    wall: int
    """ns"""
    phases: tuple[int, ...]
    """ns by `layout.PHASES`"""
    least_lead: int
    """ns that the host was ahead of the device when the last backward pass began, at least; -1:
    there was none."""
    most_lead: int
    """The same, at most; -1: unknown."""
    loss: float = nan
    """NaN: unknown; infinite: it was not finite."""
    skipped: bool = False
    """An update was skipped on the device, as a fused optimizer does for gradients that are not
    finite."""


def is_sampled(key: int, interval: int) -> bool:
    """Whether the turn that begins at `key` is timed where one in `interval` is (a power of two).

    Keys advance by a constant, so a remainder would favour some phase of the program; the high bits
    of a product with the golden ratio are spread evenly (Knuth, The Art of Computer Programming,
    vol. 3, 6.4). Turns of a longer interval are also turns of every shorter one: ranks with
    different intervals still share turns."""
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) * interval >> 64 == 0


def _share_of(value: float, average: float) -> float:
    """What a new value adds to a moving average; the first value is the average."""
    return (value - average) / (8 if average else 1)


class Tape:
    """The marks of one turn, with their events."""

    __slots__ = (
        "data",
        "engine",
        "events",
        "host",
        "key",
        "loss",
        "marks",
        "passed",
        "record",
        "skipped",
        "step",
        "steps",
    )

    def __init__(self, event: Any, now: int, *, key: int, step: int) -> None:
        self.key = key
        """Equal on all ranks at the same turn."""
        self.step = step
        """Steps that were recorded before it."""
        self.engine: Steps | None = None
        """A copy of the step engine as it was when the turn began."""
        self.steps: list[Step] = []
        """What it reports."""
        self.marks: list[Mark] = []
        self.data: list[Data] = []
        self.events = [event]
        """One more than marks: the first is the beginning."""
        self.host = [now]
        """When the host recorded each, ns."""
        self.passed: list[tuple[int, int]] = []
        """Index of an event that was seen to be complete at the next mark, and when, ns."""
        self.record = 0
        self.loss: ReadLater | None = None
        self.skipped: ReadLater | None = None


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
        self.see(device[-1], seen)

    def see(self, device: int, seen: int) -> None:
        """An event that completed at `device` was seen to be complete at `seen`."""
        self.most = min(self.most, seen - device)

    def lead(self, host: int, device: int) -> tuple[int, int]:
        """How long after it was recorded an event completed: at least, and at most; -1: unknown."""
        most = device + self.most - host
        return int(max(0, device + self.least - host)), int(most) if most < WINDOW_NS else -1


class DeviceTimer:
    """Times turns of the training loop on the device. One call at a time, each before the step
    engine is given the mark."""

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
        """Timed turns that gave nothing: they held too many marks, or the events ran out."""
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
        self._looks = LOOKS
        self._usual_cost = self._usual_wall = 0.0
        """ns of a timed turn, of any turn: moving averages, as the first ones are no measure."""
        self._cost_before = 0

    @property
    def is_timing(self) -> bool:
        """Whether the turn that runs now is timed: then every mark of it must come here."""
        return self._tape is not None

    def tapes(self) -> list[Tape]:
        """Those of the turns whose times are not known yet, the newest last. From any thread."""
        pending, tape = list(self._pending), self._tape
        return pending if tape is None else [*pending, tape]

    def enter_thread(self) -> bool:
        """Whether the calling thread, which does not train, may call `reached` from now on."""
        return self._clock.enter_thread()

    def reached(self, event: Any) -> bool:
        """Whether the device has reached an event of a tape, without waiting. From any thread."""
        return self._clock.has_completed(event)

    def mark(self, mark: Mark, data: Data = ()) -> None:
        """A mark within the turn that is timed, or the one that ends it."""
        tape = self._tape
        if tape is None:
            return
        now = self._now()
        if tape.engine is None:
            tape.engine = self._copy_engine(0, tape.steps.append)
        event = None
        if tape.engine is not None and len(tape.marks) < MOST_MARKS:
            if self._looks > 0 and self._clock.has_completed(tape.events[-1]):
                tape.passed.append((len(tape.events) - 1, self._now()))
            event = self._clock.record()
        if event is None:
            self.drop()
        else:
            tape.marks.append(mark)
            tape.data.append(data)
            tape.events.append(event)
            tape.host.append(now)
        self.spent_ns += self._now() - now

    def read_later(
        self, *, loss: ReadLater | None = None, skipped: ReadLater | None = None
    ) -> None:
        """What the device computes in the turn that is timed: its loss, and a number that is not 0
        if it skipped an update."""
        if self._tape is not None:
            self._tape.loss = loss or self._tape.loss
            self._tape.skipped = skipped or self._tape.skipped

    def turn_ended(self, record: int, wall: int, key: int, *, now: bool) -> None:
        """The engine reported a step, the number of whose record is `record`; it took `wall` ns.

        `key`: a number that is equal on all ranks at the same turn. `now`: the step ended with the
        last mark; False: earlier, so that the tape holds more than this step."""
        began = self._now()
        if self._tape is not None:
            self._usual_cost += _share_of(self.spent_ns - self._cost_before, self._usual_cost)
            self._cost_before = self.spent_ns
            if now:
                self._tape.record = record
                self._pending.append(self._tape)
                self._looks -= 1
                self._tape = None
            else:
                self.drop()
        self._play_completed()
        self._choose_interval(wall)
        if is_sampled(key, self.interval) and len(self._pending) < MOST_PENDING:
            started = self._now()
            event = self._clock.record()
            if event is not None:
                self._tape = Tape(event, started, key=key, step=record)
        self.spent_ns += self._now() - began

    def finish(self) -> None:
        """The training is over: reports what has completed and leaves the rest."""
        self.drop()
        self._play_completed()

    def _play_completed(self) -> None:
        while self._pending and self._clock.has_completed(self._pending[0].events[-1]):
            self._play(self._pending.popleft(), self._now())

    def drop(self) -> None:
        """The turn that runs now cannot be timed."""
        if self._tape is not None:
            self.dropped += 1
            self._clock.give_back(self._tape.events)
            self._tape = None

    def _choose_interval(self, wall: int) -> None:
        """The least one by which timing costs no more than it may."""
        self._usual_wall += _share_of(wall, self._usual_wall)
        needed = self._usual_cost / max(SHARE * self._usual_wall, LEAST_NS)
        if needed and self.spent_ns > FREE_NS:
            self.interval = min(1 << max(0, ceil(log2(needed))), MOST_INTERVAL)

    def _play(self, tape: Tape, seen: int) -> None:
        """Has the copy of the engine divide the turn by the device's times, and reports it."""
        events, between, engine = tape.events, self._clock.nanoseconds_between, tape.engine
        moments = [0]
        for earlier, later in pairwise(events):
            moments.append(moments[-1] + max(0, between(earlier, later)))
        for mark, data, moment in zip(tape.marks, tape.data, moments[1:], strict=True):
            mark(engine, moment, *data)
        if [(step.start, step.end) for step in tape.steps] == [(0, moments[-1])]:
            lead = self._lead(tape, moments, seen)
            (step,) = tape.steps
            loss = nan if tape.loss is None else tape.loss()
            self._report(
                DeviceStep(
                    tape.record,
                    moments[-1],
                    step.phases,
                    *lead,
                    loss=loss if tape.loss is None or isfinite(loss) else inf,
                    skipped=tape.skipped is not None and tape.skipped() != 0,
                )
            )
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
            self._looks = LOOKS
        first = 0
        if tape.events[0] is not offset.anchor:
            first = self._clock.nanoseconds_between(offset.anchor, tape.events[0])
        device = [first + moment for moment in moments]
        offset.narrow(tape.host, device, seen)
        for at, moment in tape.passed:
            offset.see(device[at], moment)
        for at in reversed(range(len(tape.marks))):
            if tape.marks[at] in self._begins_backward:
                return offset.lead(tape.host[at + 1], device[at + 1])
        return -1, -1
