"""How much memory this process holds, on the host and on its device, and how much it held at most,
read now and then at a step's end."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

_MOST = 32
"""Rungs that are kept; of more every second one is left out. Records become rare: in a million
batches of random sizes there are fourteen or so."""
_LEAST = 4 << 20
"""Bytes that a peak must have risen by: less is an allocator's rounding, not a batch."""
_LARGER = 0.02
"""And a batch, as a share."""

Rung = tuple[int, int, int, int]
"""Step; most samples and most tokens of a step up to it (0: unknown); bytes of the peak so far."""


class PeakMemoryHistory:
    """Of one kind of memory. Reads nothing itself."""

    def __init__(self) -> None:
        self.rungs: list[Rung] = []
        self._start()

    def _start(self) -> None:
        self.rungs.clear()
        self.samples = self.tokens = 0

    def saw(self, samples: int, tokens: int) -> None:
        """Steps were taken, the largest with so much data."""
        self.samples = max(self.samples, samples)
        self.tokens = max(self.tokens, tokens)

    def reached(self, step: int, peak: int) -> None:
        """The peak of all steps up to this one. A lower one than before: somebody reset it, and
        batches from before tell nothing any more."""
        if self.rungs and peak < self.rungs[-1][3]:
            self._start()
            return
        if self.rungs and not self._rose(peak):
            return
        self.rungs.append((step, self.samples, self.tokens, peak))
        if len(self.rungs) > _MOST:
            del self.rungs[1::2]

    def _rose(self, peak: int) -> bool:
        _, samples, tokens, previous_peak = self.rungs[-1]
        return (
            peak >= previous_peak + _LEAST
            or self.samples > samples * (1 + _LARGER)
            or self.tokens > tokens * (1 + _LARGER)
        )


_STATM = "/proc/self/statm"
"""proc(5): pages, the second number those that are resident. Opened anew each time (6 µs in a row,
some 20 between steps): a descriptor that stays open would be one more of the job's."""
_PART = 32
_AT_MOST_NS = 1_000_000_000
"""A reading follows the one before after a 32nd of the time since the first, and after a second at
the latest: 70 readings in 100 steps, and long runs are read once a second."""
_KIB = 1024
"""Unit of `ru_maxrss`, getrusage(2). A process begins with that of the one that executed it, which
the first rungs then show."""


class Memory:
    """Bytes by the moment, as rarely as is enough for a trend."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.device: Callable[[], tuple[int, int]] = _unknown
        """Bytes that the framework has allocated on the device, now and at most; 0: unknown."""
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.start()

    def start(self) -> None:
        """The first reading is due at the next step."""
        self._first = self._due = self._most = 0
        self._samples = self._tokens = 0
        self.on_device, self.on_host = PeakMemoryHistory(), PeakMemoryHistory()

    def at(self, now: int, step: int = 0, samples: int = 0, tokens: int = 0) -> tuple[int, int]:
        """Bytes on the device and on the host at the end of this step with so much data, where a
        reading is due at this moment (monotonic ns); 0: none, or unknown."""
        if samples > self._samples or tokens > self._tokens:
            self._samples, self._tokens = max(samples, self._samples), max(tokens, self._tokens)
        if now < self._due:
            return 0, 0
        began = time.perf_counter_ns()
        for ladder in (self.on_device, self.on_host):
            ladder.saw(self._samples, self._tokens)
        self._samples = self._tokens = 0
        self._first = self._first or now
        self._due = now + min(_AT_MOST_NS, (now - self._first) // _PART)
        allocated, most = self.device()
        if most:
            self.on_device.reached(step, most)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        self._most = max(self._most, resident)  # the kernel's counters are off by some pages
        self.on_host.reached(step, self._most)
        sample = allocated, self._resident()
        self.spent_ns += time.perf_counter_ns() - began
        return sample

    def describe(self) -> dict[str, Any]:
        """For the process metadata."""
        rungs = {"device": self.on_device.rungs, "host": self.on_host.rungs}
        return {"memory_peaks": {name: list(history) for name, history in rungs.items() if history}}

    def _resident(self) -> int:
        try:
            handle = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return int(os.read(handle, 128).split()[1]) * self._page
            finally:
                os.close(handle)
        except (OSError, ValueError, IndexError):  # no /proc, or no descriptor left
            return 0


def _unknown() -> tuple[int, int]:
    return 0, 0
