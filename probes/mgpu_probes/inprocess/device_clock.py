"""Times the phases of a step on the device's own clock, without ever waiting for the device.

While a GPU computes, the host only queues work and runs ahead, so the host's moments say when work
was queued. Therefore a `DeviceTimer` puts an event into the device's queue at every mark of some
turns of the training loop. When the last event of a turn has completed, the marks are played to a
copy of the step engine with the device's times, which divides the turn into the same phases as on a
CPU. On an idle device an event completes when it is recorded, on a busy one when the queue gets
there; so a wait for data that the queued work hides is not counted.

Nothing here synchronizes: if the events of a turn have not completed, they are queried again at the
end of the next turn. Which turns are timed depends on the number of collectives, which is equal on
all ranks, not on how far a rank's host is ahead. So all ranks time the same turns.

If a turn begins with a backward pass (no loader, no wrapped module), its begin is known only then:
it was the end of the last update or collective. Such a turn is timed if the previous turn was due:
the previous turn is recorded from its first mark on and cut where it turns out to have ended.
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
            """Records a new event at the end of the queue. None: impossible now (a graph is being
            captured, or too many events are in use)."""

        def has_completed(self, event: Any) -> bool:
            """Whether the device has reached it; False while a graph is being captured."""

        def nanoseconds_between(self, earlier: Any, later: Any) -> int:
            """Device time from one completed event to another, at most some seconds apart."""

        def give_back(self, events: list[Any]) -> None:
            """Takes back events that are no longer needed."""

        def enter_thread(self) -> bool:
            """Prepares the calling thread, not the training one, to query events; False: it must
            not query any."""

    class EngineCopies(Protocol):
        """Copies of the step engine whose turn begins at `now` (ns) and which report their steps to
        `emit`."""

        def copy_at_rest(self, now: int, emit: Callable[[Step], None]) -> Steps | None:
            """None: the engine is not at the beginning of a turn."""

        def copy_at_cut(self, now: int, emit: Callable[[Step], None]) -> tuple[int, Steps] | None:
            """With the moment (ns) at which a turn may have begun, as the next mark may show;
            None: none can have."""


MOST_EVENTS = 8192
"""Events in use at the same time. A host runs ahead of its device by at most about 1,024
operations, and a turn has at least one operation per four marks."""
MOST_MARKS = MOST_EVENTS // 2
"""Marks of one turn at most; longer turns are not timed. FSDP2 sets about nine per block, so this
suffices for 100 blocks and four micro-batches. A choice."""
MOST_PLAYED = 4
"""Completed turns that are evaluated at the end of one turn at most: after the host has waited for
the device, many have completed at once."""
MOST_INTERVAL = 4096
SHARE, LEAST_NS = 0.0005, 2_000
"""What timing may cost per step: this share of its time, or this many ns for steps of less than 4
ms (0.2 % of a step of 1 ms)."""
FREE_NS = 20_000_000
"""ns that timing may cost before that limit applies, so that a new job can be judged by its first
steps."""
COSTS, LEAST_COSTS = 9, 3
"""The number of newest timed turns by whose median cost the interval is chosen, and the least
number. A median, because the operating system may take the thread off its core while it times a
turn, which then seems to cost thousands of times as much."""
LOOKS = 8
"""Timed turns of a window in which each mark queries whether the device has reached the previous
mark. If it has, because the device waits for the host, the offset of the clocks is known as
precisely as the two marks are close. Otherwise it is known only from the ends of turns, which are
seen one turn later."""
WINDOW_NS = 10_000_000_000
"""How long an estimate of the offset between host and device clock is used: the clocks drift by up
to 50 ppm, and an interval in float32 milliseconds is exact to 1 µs up to 16 s."""


class DeviceStep(NamedTuple):
    """One step on the device's clock."""

    record: int
    """The sequence number of the host's record of this step."""
    wall: int
    """Wall time, ns."""
    phases: tuple[int, ...]
    """ns in each of `layout.PHASES`."""
    least_lead: int
    """Least ns that the host was ahead of the device when the last backward pass began; -1: there
    was no backward pass."""
    most_lead: int
    """The most ns; -1: unknown."""
    loss: float = nan
    """NaN: unknown; infinite: it was not finite."""
    skipped: bool = False
    """Whether the device skipped the update, as a fused optimizer does if gradients are not
    finite."""


def is_sampled(key: int, interval: int) -> bool:
    """Whether the turn with this key is timed, if one in `interval` turns is (a power of two).

    Keys grow by a constant, so a remainder would favour some part of the program. The high bits of
    a product with the golden ratio are spread evenly (Knuth, The Art of Computer Programming, vol.
    3, 6.4). Turns of a longer interval are also timed with every shorter one, so that ranks with
    different intervals still share timed turns."""
    return (key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) * interval >> 64 == 0


def _share_of(value: float, average: float) -> float:
    """What a new value adds to a moving average, which starts at the first value."""
    return (value - average) / (8 if average else 1)


class ClockOffset:
    """Bounds of the offset between the host's clock and the device's.

    An event is recorded before it completes and is seen as complete after it has. Each event
    narrows the bounds, precisely if the device was idle or the host waited for it."""

    def __init__(self) -> None:
        self.anchor: Any = None
        self.since = 0
        self.least: float = -inf
        self.most: float = inf

    def restart(self, anchor: Any, now: int) -> None:
        """Starts a new estimate: device times count from the event `anchor`, recorded at `now`."""
        self.anchor, self.since = anchor, now
        self.least, self.most = -inf, inf

    def narrow(self, host: list[int], device: list[int], seen: int) -> None:
        """Narrows the bounds by events recorded at `host` and completed at `device`, the last of
        which was seen as complete at `seen`."""
        self.least = max(
            self.least, *(sent - done for sent, done in zip(host, device, strict=True))
        )
        self.see(device[-1], seen)

    def see(self, device: int, seen: int) -> None:
        """Narrows the bounds by an event completed at `device` and seen as complete at `seen`."""
        self.most = min(self.most, seen - device)

    def lead(self, host: int, device: int) -> tuple[int, int]:
        """The least and the most ns from an event's recording to its completion; -1: unknown."""
        most = device + self.most - host
        return int(max(0, device + self.least - host)), int(most) if most < WINDOW_NS else -1


class DeviceTimer:
    """Times turns of the training loop on the device. Call it from one thread at a time, and before
    each mark is given to the step engine, unless a method says otherwise."""

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
        """One turn in this many is timed; a power of two."""
        self.dropped = 0
        """Timed turns without a result: they had too many marks, or the events ran out."""
        self.spent_ns = 0
        """Host time that the timing has cost, ns."""
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
        """Whether the begin of the last turn was known only afterwards; None: not known yet."""
        self._least_interval = 1
        self._offset = ClockOffset()
        self._looks = LOOKS
        self._more_holders: dict[int, int] = {}
        """`id` of an event that has several holders -> how many beyond the first."""
        self._costs: deque[int] = deque(maxlen=COSTS)
        """ns that each of the last timed turns cost."""
        self._usual_wall = 0.0
        """Wall time of a turn, ns: a moving average."""
        self._cost_before = 0

    @property
    def is_timing(self) -> bool:
        """Whether the turn that runs now is timed: then every mark of it must come here."""
        return self._tape is not None

    def tapes(self) -> list[Tape]:
        """The tapes of turns whose times are not known yet, the newest last. From any thread."""
        pending, tape = list(self._pending), self._tape
        if tape is None or (tape.engine is None and (tape.marks or self._begins_late is not False)):
            return pending
        return [*pending, tape]

    def is_open(self, tape: Tape) -> bool:
        """Whether the turn of this tape is still running. From any thread."""
        return tape is self._tape

    def enter_thread(self) -> bool:
        """Whether the calling thread, which does not train, may call `reached` from now on."""
        return self._clock.enter_thread()

    def reached(self, event: Any) -> bool:
        """Whether the device has reached an event of a tape, without waiting. From any thread."""
        return self._clock.has_completed(event)

    def mark(self, mark: Mark, data: Data = (), moment: int = 0) -> None:
        """Records an event for a mark in the timed turn, or for the mark that ends it. `moment`:
        the moment given to the step engine, ns; 0: the mark is not given to it."""
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
        """Registers values that the device computes in the timed turn: its loss (call before the
        mark that begins the backward pass), and a number that is nonzero if it skipped the
        update."""
        tape = self._tape
        if tape is not None:
            for name, value in (("loss", loss), ("skipped", skipped)):
                if value is not None:
                    tape.values.append((len(tape.marks) + (name == "loss"), name, value))

    def turn_ended(self, record: int, wall: int, key: int, end: int) -> None:
        """Ends the timed turn when the engine has reported its step, and decides whether the next
        turn is timed. `record`: sequence number of the step's record; `wall`: ns; `end`: moment of
        the mark that ended the step, the last one or an earlier one; `key`: equal on all ranks for
        the turn."""
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
        """Stores the ended turn, if its tape is complete. Returns the tape of the turn that has
        begun in the meantime; None: that one is not timed."""
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
        """Reports the completed turns at the end of the training, and drops the rest."""
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
        """Gives up timing the running turn."""
        tape, self._tape = self._tape, None
        if tape is not None:
            self._discard(tape)

    def _discard(self, tape: Tape) -> None:
        self.dropped += 1
        self._give_back(tape.events)

    def _hold(self, event: Any) -> None:
        """Adds a holder to an event."""
        self._more_holders[id(event)] = self._more_holders.get(id(event), 0) + 1

    def _give_back(self, events: list[Any]) -> None:
        """Removes a holder from each event; events without holders go back to the clock."""
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
        """Whether there are events for another turn. If not, this rank doubles its interval: the
        turns that it then times are also timed by the other ranks."""
        if self._pending_events <= MOST_EVENTS // 2:
            return True
        self._least_interval = min(2 * self.interval, MOST_INTERVAL)
        return False

    def _choose_interval(self, wall: int) -> None:
        """Chooses the shortest interval at which timing stays within its allowed cost."""
        self._usual_wall += _share_of(wall, self._usual_wall)
        if len(self._costs) >= LEAST_COSTS and self.spent_ns > FREE_NS:
            usual_cost = sorted(self._costs)[len(self._costs) // 2]
            needed = max(1.0, usual_cost / max(SHARE * self._usual_wall, LEAST_NS))
            self.interval = min(1 << ceil(log2(needed)), MOST_INTERVAL)
        self.interval = max(self.interval, self._least_interval)

    def _play(self, tape: Tape, seen: int) -> None:
        """Plays the marks to the copy of the engine with the device's times, and reports the step.
        Marks after the turn have no events; they only show where the turn ended."""
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
        """How far the host was ahead at the last backward pass: `DeviceStep`'s two leads, ns."""
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
