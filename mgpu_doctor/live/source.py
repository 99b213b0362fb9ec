"""Where frames come from: what runs on this machine, or a recording played again.

A source is called by one thread and may be steered from another. Live and replay run the same
code: load the recording up to a moment, diagnose it, and freeze the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mgpu_doctor.live.frame import Frame

if TYPE_CHECKING:
    from mgpu_doctor.case.model import Case, Rank


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
