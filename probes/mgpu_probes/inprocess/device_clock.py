"""Times the phases of a step on the device's own clock, without ever waiting for the device.

While a GPU computes, the host only queues work and runs ahead of it: moments that the host took say
when work was queued. A `DeviceTimer` therefore puts an event into the device's queue at every mark
of some turns of the training loop. Once the last event of a turn has completed, the marks are
played to a copy of the step engine with the device's times, which divides the turn into the same
phases as it does for a CPU. An event on an idle device completes when it is recorded and on a busy
one when the queue gets there, so a wait for data that the queued work hides is not counted.

Nothing here synchronizes: a turn whose events have not completed is asked again at the end of the
next turn. Which turns are timed follows from the number of collectives, which is equal on all
ranks, and not from how far a rank's host is ahead: all ranks time the same ones.

Where a turn begins with a backward pass (no loader, no wrapped module), its beginning is known only
then: it was the end of the last update or collective. Such a turn is timed if the one before it was
due, which is recorded from its first mark on and cut where it turns out to have ended.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from itertools import chain, pairwise, repeat
from math import ceil, inf, isfinite, log2, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from .device_tape import MOST_CUTS, Tape

if TYPE_CHECKING:
    from typing import Protocol

    from .device_tape import ReadLater
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

    class EngineCopies(Protocol):
        """Copies of the step engine whose turn begins at `now` (ns) and which report their steps to
        `emit`."""

        def copy_at_rest(self, now: int, emit: Callable[[Step], None]) -> Steps | None:
            """None: the engine is not at the beginning of a turn."""

        def copy_at_cut(self, now: int, emit: Callable[[Step], None]) -> tuple[int, Steps] | None:
            """With the moment (ns) at which a turn may have begun, as the next mark may show;
            None: none can have."""


MOST_EVENTS = 8192
"""In use at the same time. A host runs ahead of its device by at most about 1,024 operations, and a
turn holds at least as many of them as a quarter of its marks."""
MOST_MARKS = MOST_EVENTS // 2
"""Marks of one turn; longer turns are not timed. FSDP2 sets about nine per block: enough for
100 blocks and four micro-batches. A choice."""
MOST_PLAYED = 4
"""Turns that are divided at the end of one turn: where the host has waited for the device, many
have completed at once."""
MOST_INTERVAL = 4096
SHARE, LEAST_NS = 0.0005, 2_000
"""What timing may cost per step: this share of its time, or so many ns for steps of less than 4 ms
(0.2 % of a step of 1 ms)."""
FREE_NS = 20_000_000
"""What timing may cost once, ns: a job that has just begun is judged by its first steps."""
COSTS, LEAST_COSTS = 9, 3
"""Timed turns by whose median cost the interval is chosen; with fewer it is not. The operating
system may take the thread off its core while it times a turn: that one turn, which seems to cost
thousands of times as much, must not keep the next thousands from being timed."""
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
        self.least = max(
            self.least, *(sent - done for sent, done in zip(host, device, strict=True))
        )
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
        engine: EngineCopies,
        report: Callable[[DeviceStep], None],
        begins_backward: Collection[Mark],
        *,
        opens_turn: Collection[Mark] = (),
        host_clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`begins_backward`: the marks that begin a backward pass. Before them and before those of
        `opens_turn` a turn may have begun unnoticed."""
        self.interval = 1
        """One turn in so many is timed; a power of two."""
        self.dropped = 0
        """Timed turns that gave nothing: they held too many marks, or the events ran out."""
        self.spent_ns = 0
        """Host time that all this has cost."""
        self._clock = clock
        self._engine = engine
        self._report = report
        self._begins_backward = frozenset(begins_backward)
        self._opens_turn = self._begins_backward | frozenset(opens_turn)
        self._now = host_clock
        self._tape: Tape | None = None
        self._pending: deque[Tape] = deque()
        self._pending_events = 0
        self._begins_late: bool | None = None
        """It was known only after the last turn had begun that it had; None: not known yet."""
        self._least_interval = 1
        self._offset = ClockOffset()
        self._looks = LOOKS
        self._more_holders: dict[int, int] = {}
        """Events (`id`) that are held more than once, and how often beside."""
        self._costs: deque[int] = deque(maxlen=COSTS)
        """ns that each of the last timed turns cost."""
        self._usual_wall = 0.0
        """ns of any turn: a moving average, as the first ones are no measure."""
        self._cost_before = 0

    @property
    def is_timing(self) -> bool:
        """Whether the turn that runs now is timed: then every mark of it must come here."""
        return self._tape is not None

    def tapes(self) -> list[Tape]:
        """Those of turns that have begun and whose times are not known yet, the newest last. From
        any thread."""
        pending, tape = list(self._pending), self._tape
        if tape is None or (tape.engine is None and (tape.marks or self._begins_late is not False)):
            return pending
        return [*pending, tape]

    def is_open(self, tape: Tape) -> bool:
        """Whether the turn of this tape still runs. From any thread."""
        return tape is self._tape

    def enter_thread(self) -> bool:
        """Whether the calling thread, which does not train, may call `reached` from now on."""
        return self._clock.enter_thread()

    def reached(self, event: Any) -> bool:
        """Whether the device has reached an event of a tape, without waiting. From any thread."""
        return self._clock.has_completed(event)

    def mark(self, mark: Mark, data: Data = (), moment: int = 0) -> None:
        """A mark within the turn that is timed, or the one that ends it. `moment`: as the step
        engine is given it, ns; 0: it is not."""
        tape = self._tape
        if tape is None:
            return
        now = self._now()
        if not tape.marks and tape.engine is None:
            tape.engine = self._engine.copy_at_rest(0, tape.steps.append)
        elif tape.goes_on and mark in self._opens_turn and len(tape.copies) < MOST_CUTS:
            steps: list[Step] = []
            cut = self._engine.copy_at_cut(0, steps.append)
            if cut is not None:
                tape.copies[cut[0]] = cut[1], steps
        if self._looks > 0 and self._clock.has_completed(tape.events[-1]):
            tape.passed.append((len(tape.events) - 1, self._now()))
        event = self._clock.record() if len(tape.marks) < MOST_MARKS else None
        if event is None:
            self.drop()
        else:
            tape.add(mark, data, moment, event, now)
        self.spent_ns += self._now() - now

    def read_later(
        self, *, loss: ReadLater | None = None, skipped: ReadLater | None = None
    ) -> None:
        """What the device computes in the turn that is timed: its loss, before the mark that begins
        the backward pass, and a number that is not 0 if it skipped an update."""
        tape = self._tape
        if tape is not None:
            for name, value in (("loss", loss), ("skipped", skipped)):
                if value is not None:
                    tape.values.append((len(tape.marks) + (name == "loss"), name, value))

    def turn_ended(self, record: int, wall: int, key: int, end: int) -> None:
        """The engine reported a step, the number of whose record is `record`; it took `wall` ns and
        ended with the mark at the moment `end`, the last one or an earlier one.

        `key`: a number that is equal on all ranks at the same turn."""
        began = self._now()
        tape, self._tape = self._tape, None
        if tape is not None:
            if tape.engine is not None:
                self._costs.append(self.spent_ns - self._cost_before)
                self._cost_before = self.spent_ns
            tape = self._cut(tape, key, record, end)
        self._play_completed(MOST_PLAYED)
        self._choose_interval(wall)
        is_due = is_sampled(key, self.interval) and self._has_room()
        if tape is not None:
            tape.goes_on = is_due
        elif is_due:
            started = self._now()
            event = self._clock.record()
            tape = None if event is None else Tape(event, started, key=key, step=record)
        self._tape = tape
        self.spent_ns += self._now() - began

    def _cut(self, tape: Tape, key: int, record: int, end: int) -> Tape | None:
        """Puts the turn aside that has ended, if it is all on the tape. The tape of the turn that
        has begun meanwhile; None: it is not timed."""
        count = tape.position(end)
        if count is None:
            self._discard(tape)
            return None
        self._begins_late = count < len(tape.marks)
        rest = tape.rest(count, key, record) if tape.goes_on else None
        if rest is not None:
            self._hold(tape.events[count])
        later = tape.end(count)
        if rest is None:
            self._give_back(later)
        if tape.engine is None:
            self._give_back(tape.events)
        else:
            tape.record = record
            self._pending.append(tape)
            self._pending_events += len(tape.events)
            self._looks -= 1
        return rest

    def finish(self) -> None:
        """The training is over: reports what has completed and leaves the rest."""
        self.drop()
        self._play_completed(len(self._pending))

    def _play_completed(self, most: int) -> None:
        for _ in range(min(most, len(self._pending))):
            if not self._clock.has_completed(self._pending[0].events[-1]):
                break
            tape = self._pending.popleft()
            self._pending_events -= len(tape.events)
            self._play(tape, self._now())

    def drop(self) -> None:
        """The turn that runs now cannot be timed."""
        tape, self._tape = self._tape, None
        if tape is not None:
            self._discard(tape)

    def _discard(self, tape: Tape) -> None:
        self.dropped += 1
        self._give_back(tape.events)

    def _hold(self, event: Any) -> None:
        """The event has one holder more."""
        self._more_holders[id(event)] = self._more_holders.get(id(event), 0) + 1

    def _give_back(self, events: list[Any]) -> None:
        """One holder of each needs it no more."""
        if self._more_holders:
            events, all_events = [], events
            for event in all_events:
                further_holders = self._more_holders.pop(id(event), 0)
                if further_holders == 0:
                    events.append(event)
                elif further_holders > 1:
                    self._more_holders[id(event)] = further_holders - 1
        self._clock.give_back(events)

    def _has_room(self) -> bool:
        """Whether there are events for another turn. If not, this rank times fewer turns from now
        on, all of which the others time, too, instead of those for which it has room by chance."""
        if self._pending_events <= MOST_EVENTS // 2:
            return True
        self._least_interval = min(2 * self.interval, MOST_INTERVAL)
        return False

    def _choose_interval(self, wall: int) -> None:
        """The least one by which timing costs no more than it may."""
        self._usual_wall += _share_of(wall, self._usual_wall)
        if len(self._costs) >= LEAST_COSTS and self.spent_ns > FREE_NS:
            usual_cost = sorted(self._costs)[len(self._costs) // 2]
            needed = max(1.0, usual_cost / max(SHARE * self._usual_wall, LEAST_NS))
            self.interval = min(1 << ceil(log2(needed)), MOST_INTERVAL)
        self.interval = max(self.interval, self._least_interval)

    def _play(self, tape: Tape, seen: int) -> None:
        """Has the copy of the engine divide the turn by the device's times, and reports it. What
        was marked after the turn has no events: it shows where the turn ended."""
        events, between, engine = tape.events, self._clock.nanoseconds_between, tape.engine
        moments = [0]
        for earlier, later in pairwise(events):
            moments.append(moments[-1] + max(0, between(earlier, later)))
        end = moments[-1]
        times = chain(moments[1:], repeat(end))
        for mark, data, moment in zip(tape.marks, tape.data, times):  # noqa: B905 - endless
            mark(engine, moment, *data)
        if [(step.start, step.end) for step in tape.steps] == [(0, end)]:
            lead = self._lead(tape, moments, seen)
            (step,) = tape.steps
            loss = tape.read("loss")
            self._report(
                DeviceStep(
                    tape.record,
                    end,
                    step.phases,
                    *lead,
                    loss=nan if loss is None else loss if isfinite(loss) else inf,
                    skipped=bool(tape.read("skipped")),
                )
            )
        else:
            self.dropped += 1
        self._give_back(events)

    def _lead(self, tape: Tape, moments: list[int], seen: int) -> tuple[int, int]:
        """How far the host was ahead when the last backward pass began, as in `DeviceStep`."""
        offset = self._offset
        if offset.anchor is None or tape.host[0] - offset.since > WINDOW_NS:
            if offset.anchor is not None:
                self._give_back([offset.anchor])
            offset.restart(tape.events[0], tape.host[0])
            self._hold(offset.anchor)
            self._looks = LOOKS
        first = 0
        if tape.events[0] is not offset.anchor:
            first = self._clock.nanoseconds_between(offset.anchor, tape.events[0])
        device = [first + moment for moment in moments]
        offset.narrow(tape.host, device, seen)
        for place, moment in tape.passed:
            offset.see(device[place], moment)
        for place in reversed(range(len(moments) - 1)):
            if tape.marks[place] in self._begins_backward:
                return offset.lead(tape.host[place + 1], device[place + 1])
        return -1, -1
