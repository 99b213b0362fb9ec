"""Samples the memory of this process, on the host and on its device, at the ends of some steps, and
keeps a history of its peaks."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

_MOST = 32
"""Entries of a history of peaks; beyond that every second one is dropped. New peaks become rare: in
a million batches of random sizes there are about fourteen."""
_LEAST = 4 << 20
"""Bytes by which a new peak must exceed the last: less is rounding by the allocator."""
_LARGER = 0.02
"""The share by which a batch must be larger than the largest before to count as a new entry."""

PeakEntry = tuple[int, int, int, int]
"""Step; most samples and most tokens of a step up to it (0: unknown); bytes of the peak so far."""


class PeakMemoryHistory:
    """The history of the peaks of one kind of memory. Callers pass the peaks; it reads nothing."""

    def __init__(self) -> None:
        self.peaks: list[PeakEntry] = []
        self._start()

    def _start(self) -> None:
        self.peaks.clear()
        self.samples = self.tokens = 0

    def note_batch(self, samples: int, tokens: int) -> None:
        """Notes the largest batch of the steps since the last call."""
        self.samples = max(self.samples, samples)
        self.tokens = max(self.tokens, tokens)

    def note_peak(self, step: int, peak: int) -> None:
        """Notes the peak of all steps up to this one, bytes. A lower peak than before means that
        the program reset it: the history starts anew, because older batches say nothing about
        it."""
        if self.peaks and peak < self.peaks[-1][3]:
            self._start()
            return
        if self.peaks and not self._is_new_entry(peak):
            return
        self.peaks.append((step, self.samples, self.tokens, peak))
        if len(self.peaks) > _MOST:
            del self.peaks[1::2]

    def _is_new_entry(self, peak: int) -> bool:
        _, samples, tokens, previous_peak = self.peaks[-1]
        return (
            peak >= previous_peak + _LEAST
            or self.samples > samples * (1 + _LARGER)
            or self.tokens > tokens * (1 + _LARGER)
        )


_STATM = "/proc/self/statm"
"""proc(5): memory in pages; the second number is the resident part. It is opened for each reading
(6 µs in a loop, about 20 between steps), because an open descriptor would count against the job's
limit."""
_PART = 32
_AT_MOST_NS = 1_000_000_000
"""The next reading is due after 1/32 of the time since the first one, at the latest after a second:
about 70 readings in the first 100 steps, and one per second in long runs."""
_KIB = 1024
"""Unit of `ru_maxrss`, getrusage(2). A process inherits the value of the one that executed it,
which the first entries then show."""


class Memory:
    """Reads the memory of this process, as rarely as suffices to see a trend."""

    def __init__(self) -> None:
        self.spent_ns = 0
        self.device: Callable[[], tuple[int, int]] = _unknown
        """Bytes that the framework has allocated on the device: now and peak; 0: unknown."""
        self._page = os.sysconf("SC_PAGE_SIZE")
        self.start()

    def start(self) -> None:
        """Forgets everything; the first reading is due at the next step."""
        self._first = self._due = self._most = 0
        self._samples = self._tokens = 0
        self.on_device, self.on_host = PeakMemoryHistory(), PeakMemoryHistory()

    def at(self, now: int, step: int = 0, samples: int = 0, tokens: int = 0) -> tuple[int, int]:
        """Bytes on the device and on the host at the end of this step, if a reading is due now
        (monotonic ns); 0: no reading was due, or unknown. `samples`, `tokens`: the step's batch."""
        if samples > self._samples or tokens > self._tokens:
            self._samples, self._tokens = max(samples, self._samples), max(tokens, self._tokens)
        if now < self._due:
            return 0, 0
        began = time.perf_counter_ns()
        for history in (self.on_device, self.on_host):
            history.note_batch(self._samples, self._tokens)
        self._samples = self._tokens = 0
        self._first = self._first or now
        self._due = now + min(_AT_MOST_NS, (now - self._first) // _PART)
        allocated, most = self.device()
        if most:
            self.on_device.note_peak(step, most)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
        self._most = max(self._most, resident)  # the kernel's counters are off by some pages
        self.on_host.note_peak(step, self._most)
        sample = allocated, self._resident()
        self.spent_ns += time.perf_counter_ns() - began
        return sample

    def describe(self) -> dict[str, Any]:
        """The histories of peaks, for the process metadata."""
        peaks = {"device": self.on_device.peaks, "host": self.on_host.peaks}
        return {"memory_peaks": {name: list(history) for name, history in peaks.items() if history}}

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
