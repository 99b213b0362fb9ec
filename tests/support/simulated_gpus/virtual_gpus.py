"""A discrete-event simulation of hosts that queue work and of GPU streams that do it later.

A stream does its operations in order. An operation starts once it was queued, the one before it has
ended and what it needs from another stream has happened. A meeting (a collective, a send and its
receive) begins when the last member has reached it, as NCCL's kernels do. The end of an operation
is therefore known as soon as the ends of all that it needs are, whichever rank is simulated first.
Hosts take turns in the order of virtual time only where they ask what has completed.

All times are integers in ns. Beside the simulation every GPU books what its home stream really did,
without the help of events: that is the truth that timed phases are compared with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_float
from heapq import heappop, heappush
from typing import Any, NamedTuple

from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.device_clock import MOST_EVENTS

MS = 1_000_000
RUN_AHEAD = 1_024
"""Operations of the home stream that a host may queue before it has to wait, as under CUDA."""
LAUNCH_NS = 4_000
"""Host time to queue an operation."""
RESOLUTION_NS = 500
"""Of an event's timestamp (CUDA: about 0.5 µs)."""
HOME, COMMUNICATION, COPY = range(3)
"""Streams. The timer's events go into the home stream."""


class Kernel(NamedTuple):
    """Queues work of `duration`, which the probe's hooks count as `phase`."""

    duration: int
    phase: int
    stream: int = HOME


class Join(NamedTuple):
    """A stream goes on after what another stream has queued so far. `phase`: what the probe's hooks
    make of the time for which it is blocked."""

    after: int
    phase: int = layout.WAIT
    stream: int = HOME


class Meet(NamedTuple):
    """Queues this rank's part of a collective, send or receive of these ranks."""

    ranks: tuple[int, ...]
    transfer: int
    stream: int = COMMUNICATION
    phase: int = layout.WAIT


class Work(NamedTuple):
    """The host computes by itself."""

    duration: int


class Fetch(NamedTuple):
    """The host asks its loader for a batch that took `duration` to make."""

    duration: int


class Synchronize(NamedTuple):
    """The host waits for the home stream, as `loss.item()` does."""


class Turn(NamedTuple):
    """The training loop begins its next turn here."""


class Mark(NamedTuple):
    """A hook sets a mark. `phase`: what the host does from then on."""

    mark: Callable[..., None]
    phase: int
    data: tuple[Any, ...] = ()


Instruction = Kernel | Join | Meet | Work | Fetch | Synchronize | Turn | Mark


class Operation:
    """An operation in a stream; also an event there."""

    __slots__ = ("blocked", "duration", "end", "hosts", "issued", "meeting", "needs", "phase")

    def __init__(self, issued: int, phase: int, duration: int = 0) -> None:
        self.issued = issued
        self.phase = phase
        self.duration = duration
        self.needs: Operation | None = None
        self.meeting: Meeting | None = None
        self.end = -1
        """-1: not known yet."""
        self.blocked: list[Stream] = []
        self.hosts: list[Gpu] = []
        """They wait for its end."""


class Meeting:
    """What several ranks do together."""

    __slots__ = ("end", "last", "members", "missing", "transfer")

    def __init__(self, ranks: int, transfer: int) -> None:
        self.missing = ranks
        self.transfer = transfer
        self.last = 0
        self.end = -1
        self.members: list[Stream] = []


class Truth(NamedTuple):
    """What a home stream did during one turn."""

    began: int
    """When the host began it, ns of its clock."""
    wall: int
    phases: tuple[int, ...]
    """ns by `layout.PHASES`: work and blocked time as its operations have it, idle time by what the
    host did meanwhile."""
    blocked: int
    """ns for which it waited for other streams or ranks, whatever the hooks count it as."""


class Stream:
    """Operations in their order."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.free = 0
        """When all whose end is known have ended."""
        self.last: Operation | None = None
        self.pending: deque[Operation] = deque()

    def advance(self, woken: list[Stream]) -> None:
        """Finds the ends of operations as far as they are known; `woken` gets the streams that can
        go on now."""
        pending = self.pending
        while pending:
            operation = pending[0]
            start = max(self.free, operation.issued)
            needs, meeting = operation.needs, operation.meeting
            if needs is not None:
                if needs.end < 0:
                    needs.blocked.append(self)
                    return
                start = max(start, needs.end)
            end = start + operation.duration
            if meeting is not None:
                if self not in meeting.members:
                    meeting.members.append(self)
                    meeting.last = max(meeting.last, start)
                    meeting.missing -= 1
                    if not meeting.missing:
                        meeting.end = meeting.last + meeting.transfer
                        woken += [member for member in meeting.members if member is not self]
                if meeting.end < 0:
                    return
                end = meeting.end
            pending.popleft()
            self._complete(operation, end, woken)

    def _complete(self, operation: Operation, end: int, woken: list[Stream]) -> None:
        gpu = self.gpu
        if self is gpu.streams[HOME]:
            gpu.book(operation, self.free, end)
        self.free = operation.end = end
        operation.needs = operation.meeting = None
        woken += operation.blocked
        for host in operation.hosts:
            host.host = max(host.host, end)
            gpu.machine.resume(host)


class Gpu:
    """One rank's host and device. `mark` gets the marks of its script."""

    def __init__(self, machine: Machine, rank: int, **changes: int) -> None:
        self.machine = machine
        self.rank = rank
        self.host = 10_000 * MS
        """The host's time; its clock shows `clock_offset` more."""
        self.run_ahead = RUN_AHEAD
        self.clock_offset = 0
        self.drift_ppm = 0
        """Millionths by which the device's clock is fast."""
        self.event_ns = 0
        """Host time to record an event, or to ask for one."""
        self.resolution = RESOLUTION_NS
        self.most_events = MOST_EVENTS
        self.prefetches = 0
        """Batches that the loader makes in advance."""
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.mark: Callable[[Callable[..., None], tuple[Any, ...]], None] = lambda _, __: None
        self.capturing = False
        self.used = 0
        """Events in use."""
        self.queries = 0
        self.collectives = 0
        self.truth: list[Truth] = []
        self.streams = [Stream(self), Stream(self), Stream(self)]
        self._queue: deque[Operation] = deque()
        self._ready = self.host
        self._fetched: deque[int] = deque()
        self._labels: deque[tuple[int, int]] = deque([(0, layout.OTHER)])
        self._booked = [0] * len(layout.PHASES)
        self._blocked = 0
        self._started: tuple[int, int] | None = None
        """When the host and the home stream began this turn."""

    def clock(self) -> int:
        """The host's clock."""
        return self.host + self.clock_offset

    def run(self, script: Iterable[Instruction]) -> Iterator[Operation | None]:
        """Follows a script. Yields an operation to wait for its end, None to let others go."""
        for instruction in script:
            awaited: Operation | None = None
            if isinstance(instruction, Mark):
                if self.machine.is_ahead(self):
                    yield None
                self._labels.append((self.host, instruction.phase))
                self.mark(instruction.mark, instruction.data)
            elif isinstance(instruction, Synchronize):
                awaited = self.streams[HOME].last
            elif isinstance(instruction, Work):
                self.host += instruction.duration
            elif isinstance(instruction, Fetch):
                self._fetch(instruction.duration)
            elif isinstance(instruction, Turn):
                self._add(Operation(self.host, -1), HOME)
            else:
                awaited = self._launch(instruction)
            if awaited is not None:
                if awaited.end < 0:
                    yield awaited
                self.host = max(self.host, awaited.end)

    def _launch(self, instruction: Kernel | Join | Meet) -> Operation | None:
        """Queues it; the operation that has to end before the host goes on."""
        self.host += LAUNCH_NS
        operation = Operation(self.host, instruction.phase)
        if isinstance(instruction, Kernel):
            operation.duration = instruction.duration
        elif isinstance(instruction, Join):
            operation.needs = self.streams[instruction.after].last
        else:
            operation.meeting = self.machine.meeting(self.rank, instruction)
            self.collectives += len(instruction.ranks) == len(self.machine.gpus)
            if instruction.stream != HOME:
                operation.needs = self.streams[HOME].last
        self._add(operation, instruction.stream)
        if instruction.stream != HOME:
            return None
        queue = self._queue
        queue.append(operation)
        return queue.popleft() if len(queue) > self.run_ahead else None

    def _add(self, operation: Operation, stream: int) -> None:
        into = self.streams[stream]
        into.last = operation
        into.pending.append(operation)
        woken = [into]
        while woken:
            woken.pop().advance(woken)

    def _fetch(self, duration: int) -> None:
        """One worker makes batches, at most so many in advance."""
        asked = self._fetched.popleft() if len(self._fetched) >= self.prefetches > 0 else None
        begins = self.host if not self.prefetches else asked or 0
        self._ready = max(self._ready, begins) + duration
        self.host = max(self.host, self._ready)
        if self.prefetches:
            self._fetched.append(self.host)

    # --- the truth ------------------------------------------------------------------------------

    def book(self, operation: Operation, free: int, end: int) -> None:
        """The home stream had nothing to do from `free` on until this, which ended at `end`."""
        queued = max(free, operation.issued)
        if queued > free:
            self._book_idle(free, queued)
        if operation.phase >= 0:
            self._booked[operation.phase] += end - queued
            self._blocked += end - queued - operation.duration
            return
        if self._started is not None:
            began, started = self._started
            wall = end - started
            self.truth.append(Truth(began, wall, tuple(self._booked), self._blocked))
        self._started = operation.issued + self.clock_offset, end
        self._booked, self._blocked = [0] * len(layout.PHASES), 0

    def _book_idle(self, since: int, until: int) -> None:
        labels = self._labels
        while since < until:
            while len(labels) > 1 and labels[1][0] <= since:
                labels.popleft()
            stop = min(until, labels[1][0]) if len(labels) > 1 else until
            self._booked[labels[0][1]] += stop - since
            since = stop

    # --- as a DeviceClock -----------------------------------------------------------------------

    def record(self) -> Operation | None:
        """An event at the end of the home stream."""
        self.host += self.event_ns
        if self.capturing or self.used >= self.most_events:
            return None
        self.used += 1
        event = Operation(self.host, layout.OTHER)
        self._add(event, HOME)
        return event

    def has_completed(self, event: Operation) -> bool:
        """Whether the device has reached it by the host's time."""
        self.queries += 1
        self.host += self.event_ns
        return not self.capturing and 0 <= event.end <= self.host

    def nanoseconds_between(self, earlier: Operation, later: Operation) -> int:
        """As CUDA: from timestamps of limited resolution, in float32 milliseconds."""
        assert 0 <= earlier.end <= self.host, "CUDA raises an error: the event has not completed"
        assert 0 <= later.end <= self.host, "CUDA raises an error: the event has not completed"
        return round(c_float((self._stamp(later) - self._stamp(earlier)) * 1e-6).value * 1e6)

    def _stamp(self, event: Operation) -> int:
        moment = event.end + event.end * self.drift_ppm // 1_000_000
        return moment // self.resolution * self.resolution

    def give_back(self, events: Sequence[Operation]) -> None:
        """These events may be used again."""
        self.used -= len(events)

    def enter_thread(self) -> bool:
        """Any thread may ask."""
        return True


class Machine:
    """All ranks of a job."""

    def __init__(self, ranks: int, changes: Sequence[dict[str, int]] = ()) -> None:
        self.gpus = [
            Gpu(self, rank, **(changes[rank] if rank < len(changes) else {}))
            for rank in range(ranks)
        ]
        self._runnable: list[tuple[int, int]] = []
        self._meetings: dict[tuple[int, ...], list[Meeting]] = {}
        self._met: dict[tuple[int, ...], list[int]] = {}

    def meeting(self, rank: int, meet: Meet) -> Meeting:
        """The next one of this rank among those of the same ranks."""
        ranks = meet.ranks
        meetings = self._meetings.setdefault(ranks, [])
        counts = self._met.setdefault(ranks, [0] * len(self.gpus))
        if counts[rank] == len(meetings):
            meetings.append(Meeting(len(ranks), meet.transfer))
        counts[rank] += 1
        return meetings[counts[rank] - 1]

    def is_ahead(self, gpu: Gpu) -> bool:
        """Whether another host that can go on is at an earlier time."""
        return bool(self._runnable) and self._runnable[0][0] < gpu.host

    def resume(self, gpu: Gpu) -> None:
        """This host goes on at its time."""
        heappush(self._runnable, (gpu.host, gpu.rank))

    def run(self, scripts: Sequence[Iterable[Instruction]]) -> None:
        """Follows each rank's script to its end."""
        running = [gpu.run(script) for gpu, script in zip(self.gpus, scripts, strict=True)]
        ended = 0
        for gpu in self.gpus:
            self.resume(gpu)
        while self._runnable:
            _, rank = heappop(self._runnable)
            gpu = self.gpus[rank]
            try:
                operation = next(running[rank])
            except StopIteration:
                ended += 1
                continue
            if operation is None:
                self.resume(gpu)
            else:
                operation.hosts.append(gpu)
        assert ended == len(running), "the ranks wait for each other for ever"
