"""Where a rank's time goes: nested phases whose sum is the wall time, to the nanosecond.

A `Ledger` knows one current phase and a stack of outer ones. Every mark books the time since the
last mark to the phase that was current, so nothing is counted twice and nothing is lost.
"""

from __future__ import annotations

from typing import Union

from . import layout

PENDING = len(layout.PHASES)
"""Time that only the next mark can explain: before a backward pass it was the forward pass, before
a batch fetch, a module call or an optimizer it was none of the phases. Never leaves the engine."""
BUCKETS = PENDING + 1

Words = Union["memoryview[int]", list[int]]
NOWHERE: Words = [0] * (layout.HEADER_SIZE // 8)
"""A stand-in for the header words of a box that is not open."""
PHASE_WORD = layout.NOW_PHASE // 8
SINCE_WORD = layout.NOW_SINCE // 8
SHOWN = (*range(PENDING), layout.OTHER)
"""What the now cell shows for a phase."""


class Ledger:
    """Books time (monotonic ns) to phases, and shows the current one in the box's now cell."""

    __slots__ = ("booked", "marks", "outer", "phase", "since", "step_bits", "words")

    def __init__(self, now: int, words: Words = NOWHERE) -> None:
        self.booked = [0] * BUCKETS
        self.phase = PENDING
        self.outer: list[int] = []
        self.since = now
        self.words = words
        self.step_bits = 0
        self.marks = 0

    def enter(self, phase: int, now: int) -> None:
        """A phase begins inside the current one."""
        self.booked[self.phase] += now - self.since
        self.outer.append(self.phase)
        self._show(phase, now)

    def leave(self, now: int) -> None:
        """The innermost phase ends; the one around it goes on."""
        self.booked[self.phase] += now - self.since
        self._show(self.outer.pop() if self.outer else PENDING, now)

    def settle(self, phase: int, now: int) -> None:
        """The outermost phase is `phase` from now on (whatever is nested goes on)."""
        if self.outer:
            self.outer[0] = phase
            return
        self.booked[self.phase] += now - self.since
        self._show(phase, now)

    def explain(self, phase: int, now: int) -> None:
        """What was pending until now was `phase`."""
        booked = self.booked
        if self.phase == PENDING:
            booked[PENDING] += now - self.since
            self.since = now
        booked[phase] += booked[PENDING]
        booked[PENDING] = 0

    def move(self, source: int, target: int, nanoseconds: int) -> None:
        """Rebook time that turns out to have been something else."""
        moved = min(nanoseconds, self.booked[source])
        self.booked[source] -= moved
        self.booked[target] += moved

    def cut(self, now: int) -> list[int]:
        """All that was booked since the last cut; booking starts anew at `now`."""
        self.booked[self.phase] += now - self.since
        self.since = now
        booked, self.booked = self.booked, [0] * BUCKETS
        return booked

    def _show(self, phase: int, now: int) -> None:
        self.phase = phase
        self.since = now
        self.marks += 1
        words = self.words
        words[PHASE_WORD] = SHOWN[phase] | self.step_bits
        words[SINCE_WORD] = now
