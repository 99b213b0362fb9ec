"""How much memory this process holds, on the host and on its device, read now and then at a step's
end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_STATM = "/proc/self/statm"
"""proc(5): pages, the second number those that are resident. Opened anew each time (6 µs in a row,
some 20 between steps): a descriptor that stays open would be one more of the job's."""
_PART = 32
_AT_MOST_NS = 1_000_000_000
"""A reading follows the one before after a 32nd of the time since the first, and after a second at
the latest: 70 readings in 100 steps, and long runs are read once a second."""


class Memory:
    """Bytes by the moment, as rarely as is enough for a trend."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.device: Callable[[], int] = int
        """Bytes that the framework has allocated on the device; 0: unknown."""
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.start()

    def start(self) -> None:
        """The first reading is due at the next step."""
        self._first = self._due = 0

    def at(self, now: int) -> tuple[int, int]:
        """Bytes on the device and on the host, where a reading is due at this moment (monotonic
        ns); 0: none, or unknown."""
        if now < self._due:
            return 0, 0
        began = time.perf_counter_ns()
        self._first = self._first or now
        self._due = now + min(_AT_MOST_NS, (now - self._first) // _PART)
        found = self.device(), self._resident()
        self.spent_ns += time.perf_counter_ns() - began
        return found

    def _resident(self) -> int:
        try:
            handle = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(handle, 128).split()[1]) * self._page
            finally:
                os.close(handle)
        except (OSError, ValueError, IndexError):  # no /proc, or no descriptor left
            return 0
