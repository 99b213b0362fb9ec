"""How far the clock of a host is ahead of this machine's, and how uncertain that is.

A question goes there and its answer comes back, with the times at both ends, as in NTP (RFC 5905):
the clocks differ by the mean of the two ways' differences, which is wrong by at most half of the
time on the way, however unequal the two ways are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

ASK_EVERY: Final = 20.0
"""Seconds between questions."""
MATTERS: Final = 0.005
"""Seconds from which a difference is put right. A choice: other ranks notice the death of one after
some milliseconds, and their ends are sorted by time."""
GREETING_MATTERS: Final = 2.0
"""The same where only the host's greeting is known, which came after an unknown delay."""
DRIFT: Final = 1e-4
"""Seconds per second by which a clock may go wrong: more than quartz does (5e-5), and than NTP
adjusts it by while it runs well."""
MOST_ASKED: Final = 8
"""Questions whose answers may still come."""


class ClockOffset:
    """`clock`: seconds since the epoch, of this machine."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_new = False
        """Whether the host has greeted and was not asked since."""
        self._asked: deque[float] = deque(maxlen=MOST_ASKED)
        self._best: tuple[float, float, float] | None = None
        """Seconds ahead, error, and when that was measured."""
        self.corrected = 0.0
        """Seconds by which the host's times are put back; 0: its clock agrees."""

    @property
    def ahead(self) -> float | None:
        """Seconds by which the host's clock is ahead; None: it has not answered yet."""
        return None if self._best is None else self._best[0]

    @property
    def error(self) -> float | None:
        """Seconds by which `ahead` may be wrong."""
        return None if self._best is None else self._error_now(self._best)

    def _error_now(self, measured: tuple[float, float, float]) -> float:
        _, error, at = measured
        return error + DRIFT * abs(self._clock() - at)

    def hear(self, at: float) -> None:
        """Takes note of a greeting. `at`: the host's clock as it sent it."""
        self.is_new = True
        ahead = at - self._clock()
        if self._best is None and abs(ahead - self.corrected) >= GREETING_MATTERS:
            self.corrected = ahead

    def ask(self, at: float) -> None:
        """Takes note of a question. `at`: this machine's clock as it was sent."""
        self.is_new = False
        self._asked.append(at)

    def answer(self, asked: float, arrived: float, sent: float) -> None:
        """Takes in an answer. `asked`: when, as in `ask`; `arrived`, `sent`: the host's clock as
        the question came and as the answer went. One that was not asked for is ignored."""
        now = self._clock()
        if asked not in self._asked or sent < arrived or now < asked:
            return
        self._asked.remove(asked)
        ahead = ((arrived - asked) + (sent - now)) / 2
        measured = ahead, max(0.0, (now - asked) - (sent - arrived)) / 2, now
        if self._best is None or measured[1] <= self._error_now(self._best):
            self._best = measured
        elif abs(ahead - self._best[0]) > measured[1] + self._error_now(self._best):
            self._best = measured  # somebody has set one of the clocks
        ahead, error, _ = self._best
        if abs(ahead - self.corrected) >= max(MATTERS, 2 * error):
            self.corrected = ahead
