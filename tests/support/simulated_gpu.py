"""Ranks that train on simulated GPUs, in virtual time, with the probe's real engine and timer.

Each rank has a host that queues work and runs ahead, a compute stream and a communication stream.
A collective ends on all ranks when the last one has reached it and the data has moved, as NCCL's
kernels do. Nothing depends on a real clock, so every moment can be compared with the truth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mgpu_probes.inprocess.device_clock import MOST_EVENTS

MS = 1_000_000
RUN_AHEAD = 1_024
"""Operations of a stream that may be queued before the host has to wait, as under CUDA."""

Program = Generator[int, int, None]
"""A rank's program: yields when it has reached a collective (its arrival, ns) and is sent the
moment at which the collective begins to move data (the last arrival)."""


@dataclass(eq=False)
class SimulatedGpu:
    """One rank's host and device. Moments and durations in ns; the device's clock counts from
    `epoch` of the host's."""

    epoch: int = 0
    run_ahead: int = RUN_AHEAD
    host: int = 10_000 * MS
    """What the host's clock shows now."""
    compute: int = 0
    """When the last operation of the compute stream completes."""
    communication: int = 0
    most_events: int = MOST_EVENTS
    capturing: bool = False
    used: int = 0
    """Events in use."""
    queries: int = 0
    _queue: deque[int] = field(default_factory=deque)

    def clock(self) -> int:
        """The host's clock."""
        return self.host

    def work(self, nanoseconds: int) -> None:
        """The host computes something itself."""
        self.host += nanoseconds

    def launch(self, nanoseconds: int, host: int = 5_000) -> None:
        """Queues an operation that takes so long on the device, and `host` ns to queue."""
        self.host += host
        self.compute = max(self.compute, self.host) + nanoseconds
        self._queued(self.compute)

    def reach(self, host: int = 5_000) -> int:
        """Queues a collective behind what is queued; when this rank reaches it on the device."""
        self.host += host
        return max(self.communication, self.compute, self.host)

    def communicated(self, end: int) -> None:
        """The collective that was reached last completes."""
        self.communication = end

    def wait_for_communication(self) -> None:
        """The compute stream goes on after the collectives."""
        self.compute = max(self.compute, self.communication)

    def synchronize(self) -> None:
        """The host waits for the device, as `loss.item()` does."""
        self.host = max(self.host, self.compute)

    def _queued(self, end: int) -> None:
        self._queue.append(end)
        if len(self._queue) > self.run_ahead:
            self.host = max(self.host, self._queue.popleft())

    # --- as a DeviceClock -----------------------------------------------------------------------

    def record(self) -> int | None:
        """The moment at which the event completes."""
        if self.capturing or self.used >= self.most_events:
            return None
        self.used += 1
        self.compute = max(self.compute, self.host)
        return self.compute

    def has_completed(self, event: int) -> bool:
        self.queries += 1
        return not self.capturing and event <= self.host

    def nanoseconds_between(self, earlier: int, later: int) -> int:
        assert later <= self.host, "CUDA raises an error: the event has not completed"
        return later - earlier

    def give_back(self, events: Sequence[int]) -> None:
        self.used -= len(events)

    def enter_thread(self) -> bool:
        return True


def run_together(programs: Sequence[tuple[SimulatedGpu, Program]], moving: int) -> None:
    """Runs the ranks to their end; data moves for `moving` ns in each collective."""
    arrivals: list[int | None] = [next(program, None) for _, program in programs]
    while all(arrival is not None for arrival in arrivals):
        end = max(filter(None, arrivals)) + moving
        for gpu, _ in programs:
            gpu.communicated(end)
        arrivals = [_advance(program, end) for _, program in programs]
    assert arrivals == [None] * len(programs), "the ranks called different collectives"


def _advance(program: Program, end: int) -> int | None:
    try:
        return program.send(end)
    except StopIteration:
        return None


@dataclass(frozen=True)
class Training:
    """A data-parallel loop; seconds of the device are in ns."""

    steps: int = 60
    input: int = 1 * MS
    """Of the host, waiting for a batch."""
    forward: int = 10 * MS
    backward: int = 20 * MS
    optimizer: int = 4 * MS
    operations: int = 20
    """Each of forward and backward."""
    buckets: int = 3
    reads_loss: bool = False
    """`loss.item()` in every step."""
    slow: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """Rank -> phase -> additional ns in every step"""


class Marks(Protocol):
    """Sets a mark by the name of the step engine's method, now."""

    def __call__(self, name: str, data: tuple[Any, ...] = ..., /) -> None: ...


def data_parallel(gpu: SimulatedGpu, mark: Marks, job: Training, rank: int) -> Program:
    """What DistributedDataParallel does on a device, with the marks of the probe's hooks."""

    def launch(phase: str, parts: int = 1) -> None:
        """One of so many equal parts of a phase."""
        nanoseconds = (getattr(job, phase) + job.slow.get(rank, {}).get(phase, 0)) // parts
        operations = max(1, job.operations // parts)
        for _ in range(operations):
            gpu.launch(nanoseconds // operations)

    for _ in range(job.steps):
        mark("fetch_begins")
        gpu.work(job.input + job.slow.get(rank, {}).get("input", 0))
        mark("fetch_ends", (8, 0))
        mark("forward_begins")
        launch("forward")
        mark("forward_ends")
        mark("backward_begins")
        for _ in range(job.buckets):
            launch("backward", job.buckets)
            yield gpu.reach()
        mark("backward_waits")
        gpu.wait_for_communication()
        mark("backward_ends", (float("nan"),))
        mark("update_begins")
        launch("optimizer")
        mark("update_ends")
        if job.reads_loss:
            gpu.synchronize()
