"""Sources of frames: live jobs on this machine, or a recording that is replayed.

A source is called by one thread and may be controlled from another. Live and replay run the same
code: load the recording up to a moment, diagnose it, and freeze the result. What is not on the
screen is not computed, and costly work is limited to a small share of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mgpu_doctor.live.frame import Frame

CPU_SHARE = 0.003
"""Share of a core: a seventh of what the whole screen may take with 256 ranks (2 %)."""
LONGEST_REST = 40.0
"""Seconds after which it is done in any case."""
LEAST_REST = 4.0
"""What makes frames rests at least this many times the CPU time that it took, so that it uses at
most a fifth of a core. Waiting for a slow driver costs no CPU time."""
if TYPE_CHECKING:
    from mgpu_doctor.case.model import Case, Rank


class FrameOptions(NamedTuple):
    heat: bool = True
    """Whether the maps of ranks are shown: by step, and by host."""
    history: bool = True
    """Whether past samples are needed, for graphs."""
    more: bool = True
    """Whether more frames follow: then XIDs are collected from the first one on."""


ALL_OPTIONS = FrameOptions()


class Pace:
    """Decides when work is due that may take `share` of the time. `cost`: CPU seconds spent so far
    by this thread. `longest`: seconds after which it is due in any case."""

    def __init__(
        self,
        clock: Callable[[], float],
        cost: Callable[[], float],
        longest: float = LONGEST_REST,
        share: float = CPU_SHARE,
    ) -> None:
        self._clock = clock
        self._cost = cost
        self._longest = longest
        self._share = share
        self.due_at = 0.0
        """When the work is due, on the pace's clock."""
        self._began = 0.0

    def due(self) -> bool:
        return self._clock() >= self.due_at

    def begin(self) -> None:
        self._began = self._cost()

    def end(self, without: float = 0.0) -> float:
        """Ends the work; returns its CPU seconds, less those counted elsewhere (`without`)."""
        took = self._cost() - self._began - without
        self.due_at = self._clock() + min(self._longest, took / self._share)
        return took


class Source(Protocol):
    def frame(self, passed: float) -> Frame:
        """Returns the frame to show now. `passed`: seconds since the last one (0: make it at
        once)."""
        ...

    def close(self) -> None:
        """Ends the sampling threads; no frame is requested after this."""
        ...


@runtime_checkable
class Player(Source, Protocol):
    """A source that replays a recording: `replay.Replay`."""

    def pause(self) -> None: ...

    def step(self, seconds: float) -> bool:
        """Returns whether it moved, as `seek` does."""
        ...

    def seek(self, share: float) -> bool: ...

    def faster(self, steps: int) -> bool:
        """Returns whether there is such a speed."""
        ...


@runtime_checkable
class Chooser(Source, Protocol):
    """A source that can switch jobs: `live_jobs.LiveJobs`."""

    def next_job(self) -> None: ...


@runtime_checkable
class Announcer(Source, Protocol):
    """A source that knows when a rank of its job is further than all were: `host_jobs.HostJobs`."""

    def announce_steps(self, call: Callable[[], None]) -> None:
        """Calls `call` for each such step from now on, in a thread of the source."""
        ...


@runtime_checkable
class StackTaker(Source, Protocol):
    """A source whose ranks run on other hosts: `host_jobs.HostJobs`."""

    def take_stacks(self) -> Case | None:
        """Takes the stacks of the job that is shown, on all of its hosts: the job with them; None
        if none arrived. For any thread; it waits some seconds."""
        ...


def all_ranks(case: Case | None) -> tuple[Rank, ...]:
    """Returns all ranks including earlier attempts, whose steps are the same rank's history."""
    return () if case is None else (*case.earlier, *case.ranks)
