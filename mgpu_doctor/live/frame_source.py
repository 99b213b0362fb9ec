"""Where frames come from: live jobs of this machine, or a recording that is replayed.

A source is called by one thread and may be steered from another. Live and replay run the same
code: load the recording up to a moment, diagnose it, and freeze the result. What nobody will look
at is not made, and costly work is paced to a small share of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mgpu_doctor.live.frame import Frame

CPU_SHARE = 0.003
"""Of a core: a seventh of what the whole screen may take with 256 ranks (2 %)."""
LONGEST_REST = 40.0
"""Seconds after which it is done whatever it costs."""
if TYPE_CHECKING:
    from mgpu_doctor.case.model import Case, Rank


class FrameOptions(NamedTuple):
    heat: bool = True
    """The heat-map of ranks and steps."""
    history: bool = True
    """What was sampled before, for graphs."""
    details: bool = True
    """Of GPUs: what is told of them beside the table."""
    more: bool = True
    """Further frames will follow: XIDs are listened for from the first one on."""


ALL_OPTIONS = FrameOptions()


class Pace:
    """When something is due that may take `share` of the time. `cost`: seconds of CPU spent so far
    by this thread; `longest`: seconds after which it is due in any case."""

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
        self._due = 0.0
        self._began = 0.0

    def due(self) -> bool:
        return self._clock() >= self._due

    def begin(self) -> None:
        self._began = self._cost()

    def end(self, without: float = 0.0) -> float:
        """Seconds that it took, less those that are counted elsewhere."""
        took = self._cost() - self._began - without
        self._due = self._clock() + min(self._longest, took / self._share)
        return took


class Source(Protocol):
    def frame(self, passed: float) -> Frame:
        """The frame to show now; `passed`: seconds since the last one (0: at once)."""
        ...

    def close(self) -> None:
        """Ends the threads that sample for it; no frame is asked for any more."""
        ...


@runtime_checkable
class Player(Source, Protocol):
    """Plays what is over: `replay.Replay`."""

    def pause(self) -> None: ...

    def step(self, seconds: float) -> None: ...

    def seek(self, share: float) -> None: ...

    def faster(self, steps: int) -> None: ...


@runtime_checkable
class Chooser(Source, Protocol):
    """Can turn to another job: `here.Live`."""

    def next_job(self) -> None: ...


def all_ranks(case: Case | None) -> tuple[Rank, ...]:
    """Also those of earlier attempts: their steps are the past of the same rank."""
    return () if case is None else (*case.earlier, *case.ranks)
