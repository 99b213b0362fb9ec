"""Polls a driver that may be slow or hang: queries, their periods, and what errors mean.

Each driver is polled in a thread of its own. A sample waits for it briefly, then continues with
the values that are known so far."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

Json = dict[str, Any]

LOST_ERRORS = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
"""The device answers nothing any more."""
UNSUPPORTED_ERRORS = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Errors of a device or driver without that feature: the value is unknown, nothing is wrong."""
_NO_DRIVER = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
ONCE = math.inf
"""Period of values that never change: queried until they are known."""
SLOW_PERIOD = 10.0
"""Seconds between queries of values that change slowly: links, errors, limits."""
SLOW_CALL = 0.005
"""Seconds. Slower queries run in a separate thread, so that the others need not wait."""
STALE = 30.0
"""Seconds past its period after which a value counts as unknown."""
_ROUNDING = 0.05
"""Seconds by which a query may be early: samples are never exactly one period apart."""


class LostError(Exception):
    """The device answers nothing any more."""


def is_unsupported(error: BaseException) -> bool:
    """Whether the device or driver lacks the feature; AttributeError: an older nvidia-ml-py."""
    return isinstance(error, AttributeError) or getattr(error, "value", None) in UNSUPPORTED_ERRORS


def describe_error(error: Any) -> str:
    """NVML's message for its error, as part of a sentence."""
    if isinstance(error, AttributeError):
        return "not known to this version of nvidia-ml-py"
    return str(error).strip().rstrip(".").replace("Not Supported", "not supported")


def explain_no_devices(error: Any) -> str:
    """Why NVML reports no device, as a sentence without its full stop."""
    if error.value in _NO_DRIVER:
        return "no NVIDIA driver on this machine"
    return f"NVML does not start: {describe_error(error)}"


class Answer(NamedTuple):
    at: float
    """Seconds, monotonic."""
    fields: Json
    trouble: str | None = None


class Question:
    """A periodic query of one device. `ask` takes its handle and returns fields of its reading;
    parts (`pcie`, `ecc`) may come from several queries. It raises NVMLError, or ValueError for
    implausible values.

    `loud`: every device should support it, so lack of support is reported. `slow`: the last query
    took long, or every query does. `later`: a first sample in a hurry does without it."""

    def __init__(
        self,
        what: str,
        ask: Callable[[Any], Json],
        every: float = 0.0,
        *,
        loud: bool = False,
        slow: bool = False,
        later: bool = False,
    ) -> None:
        self.what, self.ask, self.every, self.loud, self.slow = what, ask, every, loud, slow
        self.later = later
        self.answer: Answer | None = None
        self.waits = not slow
        """Whether a sample waits for the first answer."""

    def due(self, now: float) -> bool:
        """Whether the query should run at `now` (monotonic seconds)."""
        if self.answer is None:
            return True
        if self.every == ONCE:
            return self.answer.trouble is not None
        return now - self.answer.at >= self.every - _ROUNDING

    def put(self, handle: Any) -> None:
        """Queries the device and keeps the answer or the error. Raises `LostError`."""
        began = time.monotonic()
        fields, trouble = self._asked(handle)
        ended = time.monotonic()
        self.slow = not self.waits or ended - began > SLOW_CALL
        self.answer = Answer(ended, fields, trouble)

    def newest(self, now: float) -> tuple[Json, str | None]:
        """The fields that are known at `now`, and why others are unknown (None: no reason)."""
        if self.answer is None:
            missed = self.waits and not self.later
            return {}, "not read yet: the driver is slow" if missed else None
        silent = now - self.answer.at
        if self.every < ONCE and silent > self.every + STALE:
            return {}, f"no answer for {STALE:.0f} s or longer"
        return self.answer.fields, self.answer.trouble

    def _asked(self, handle: Any) -> tuple[Json, str | None]:
        try:
            return self.ask(handle), None
        except pynvml.NVMLError as error:
            if error.value in LOST_ERRORS:
                raise LostError(describe_error(error)) from error
            return {}, None if is_unsupported(error) and not self.loud else describe_error(error)
        except AttributeError as error:
            return {}, describe_error(error) if self.loud else None
        except ValueError as error:
            return {}, str(error)


class Rate:
    """The rate of a counter per second since the previous reading."""

    def __init__(self) -> None:
        self.last: tuple[float, float] | None = None

    def of(self, counter: float | None, now: float) -> float | None:
        """The rate per second; None at the first reading and after a reset of the counter."""
        before, self.last = self.last, None if counter is None else (now, counter)
        if before is None or counter is None or counter < before[1] or now <= before[0]:
            return None
        return (counter - before[1]) / (now - before[0])


class PollingThread:
    """Repeats one job in a thread, once per request. A driver that hangs stops only this thread. A
    request during a round starts another round after it."""

    def __init__(self, job: Callable[[], None], name: str) -> None:
        self._job = job
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def ask(self) -> int:
        """Request a round that begins after now; returns its number."""
        with self._changed:
            if self._asked == 0 and not self._over:
                self._thread.start()
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def wait(self, number: int, seconds: float) -> bool:
        """Whether that round has ended, after waiting at most `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= number or self._over, seconds)

    def stop(self, seconds: float) -> bool:
        """End the thread after its round; returns whether it has ended."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def over(self) -> bool:
        """Whether to stop: long jobs check it between their parts."""
        return self._over

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._done or self._over)
                number = self._asked
            if self._over:
                return
            try:
                self._job()
            finally:
                with self._changed:
                    self._done = number
                    self._changed.notify_all()
