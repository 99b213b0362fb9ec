"""Samples on request, in one thread, and never more often than the interval.

A hanging GPU driver blocks the thread, not the clients: they wait a bounded time and get an error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mgpu_doctor.report import text

PATIENCE = 8.0
"""Seconds that a client waits; Prometheus gives up after 10."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample. `made`: time on the sampler's clock. `took`: seconds."""

    text: bytes
    made: float
    took: float


class NoSampleError(Exception):
    """There is no sample; the message is one sentence that says why."""


class Sampler:
    """Calls `make` in a thread of its own, from the first request on."""

    def __init__(
        self,
        make: Callable[[], bytes],
        interval: float,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._interval = interval
        self.patience = patience
        self._clock = clock
        self._changed = threading.Condition()
        self._asked = False
        self._sample: Sample | None = None
        self._failures = 0
        self._thread = threading.Thread(target=self._work, name="sampler", daemon=True)

    def get(self) -> Sample:
        """Returns a sample that is recent enough. Raises `NoSampleError`."""
        with self._changed:
            if not self._thread.is_alive():
                self._thread.start()
            failures = self._failures
            if self._fresh() is None:
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._fresh() is not None or self._failures != failures,
                    self.patience,
                )
            fresh = self._fresh()
            if fresh is not None:
                return fresh
            if self._failures != failures:
                raise NoSampleError("the sample failed")
            raise NoSampleError(f"the sample takes longer than {self.patience:.0f} s")

    def age(self, sample: Sample) -> float:
        """Returns the seconds since the sample was made."""
        return self._clock() - sample.made

    def late(self, sample: Sample) -> float:
        """Returns the seconds by which the sample is older than the interval allows."""
        return max(0.0, self.age(sample) - self._interval)

    def _fresh(self) -> Sample | None:
        """Returns whether the sample is recent enough. A sample that took long stays valid for as
        long, or clients would never get it."""
        sample = self._sample
        if sample is None or self.age(sample) >= max(self._interval, sample.took):
            return None
        return sample

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked)
                self._asked = False
            began = self._clock()
            try:
                made = self._make()
            except Exception as error:  # any error: the next sample may succeed
                report_failure(error)
                with self._changed:
                    self._failures += 1
                    self._changed.notify_all()
                continue
            with self._changed:
                now = self._clock()
                self._sample = Sample(made, now, now - began)
                self._asked = False
                self._changed.notify_all()


def report_failure(error: Exception) -> None:
    """Prints the failure on standard error: clients do not see internals."""
    reason = text.line(f"{type(error).__name__}: {error}")
    print(f"mgpu-doctor: the sample failed: {reason}", file=sys.stderr, flush=True)
