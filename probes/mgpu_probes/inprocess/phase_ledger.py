"""Books a rank's time to nested phases, whose sum is exactly the wall time.

A `Ledger` has one current phase and a stack of outer ones. Each mark books the time since the last
mark to the phase that was current, so no time is counted twice or lost. The step engine uses it.
"""

from __future__ import annotations

from typing import Union

from . import layout

PENDING = len(layout.PHASES)
"""The phase of time that only the next mark decides: before a backward pass it was forward; before
a batch fetch, a module call or an optimizer it was `other`. It never occurs outside of the
engine."""
BUCKETS = PENDING + 1

Words = Union["memoryview[int]", list[int]]
NOWHERE: Words = [0] * (layout.HEADER_SIZE // 8)
"""Replaces the header words of a box while no box is open."""
PHASE_WORD = layout.NOW_PHASE // 8
SINCE_WORD = layout.NOW_SINCE // 8
SHOWN = (*range(PENDING), layout.OTHER)
"""Phase -> the phase that the now cell shows."""


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
        """Begins a phase within the current one."""
        self.booked[self.phase] += now - self.since
        self.outer.append(self.phase)
        self._show(phase, now)

    def leave(self, now: int) -> None:
        """Ends the innermost phase; the one around it continues."""
        self.booked[self.phase] += now - self.since
        self._show(self.outer.pop() if self.outer else PENDING, now)

    def settle(self, phase: int, now: int) -> None:
        """Makes `phase` the outermost phase from now on; nested ones continue."""
        if self.outer:
            self.outer[0] = phase
            return
        self.booked[self.phase] += now - self.since
        self._show(phase, now)

    def explain(self, phase: int, now: int) -> None:
        """Books the pending time to `phase`."""
        booked = self.booked
        if self.phase == PENDING:
            booked[PENDING] += now - self.since
            self.since = now
        booked[phase] += booked[PENDING]
        booked[PENDING] = 0

    def move(self, source: int, target: int, nanoseconds: int) -> None:
        """Moves booked time, at most `nanoseconds`, from one phase to another."""
        moved = min(nanoseconds, self.booked[source])
        self.booked[source] -= moved
        self.booked[target] += moved

    def cut(self, now: int) -> list[int]:
        """Returns the ns per phase since the last cut, and starts booking from zero at `now`."""
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
