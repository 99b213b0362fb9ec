"""Asking a driver that may be slow or hang: what is asked, how often, and what errors mean.

Each driver is asked in a thread of its own. A sample waits for it for a moment, then goes on
with the answers that are known so far."""

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
"""The device or its driver does not have what was asked for: unknown, and nothing is wrong."""
_NO_DRIVER = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
)
ONCE = math.inf
"""Never changes, so it is asked until it is known."""
SLOW_PERIOD = 10.0
"""Seconds between questions of what changes slowly: links, errors, limits."""
SLOW_CALL = 0.005
"""Seconds. A question that took longer is asked apart from the rest, who do not wait for it."""
STALE = 30.0
"""Seconds after which an answer that should long have been renewed is no longer shown."""
_ROUNDING = 0.05
"""Seconds by which a question may come early: samples are never exactly a period apart."""


class LostError(Exception):
    """The device answers nothing any more."""


def is_unsupported(error: BaseException) -> bool:
    """AttributeError: an older nvidia-ml-py does not know the name."""
    return isinstance(error, AttributeError) or getattr(error, "value", None) in UNSUPPORTED_ERRORS


def describe_error(error: Any) -> str:
    """NVML's words for its error, in lower case where they stand for themselves."""
    if isinstance(error, AttributeError):
        return "not known to this version of nvidia-ml-py"
    return str(error).strip().rstrip(".").replace("Not Supported", "not supported")


def explain_no_devices(error: Any) -> str:
    """Why NVML shows no device at all."""
    if error.value in _NO_DRIVER:
        return "no NVIDIA driver on this machine"
    return f"NVML does not start: {describe_error(error)}"


class Answer(NamedTuple):
    at: float
    """Seconds, monotonic."""
    fields: Json
    trouble: str | None = None


class Question:
    """`ask` takes a device's handle and returns fields of its reading, of which parts (`pcie`,
    `ecc`) may come from several questions. It raises NVMLError, and ValueError for nonsense.

    `loud`: every device should have it: where it does not, that is told. `slow`: took long the
    last time, or is known to."""

    def __init__(
        self,
        what: str,
        ask: Callable[[Any], Json],
        every: float = 0.0,
        *,
        loud: bool = False,
        slow: bool = False,
    ) -> None:
        self.what, self.ask, self.every, self.loud, self.slow = what, ask, every, loud, slow
        self.answer: Answer | None = None
        self.waits = not slow
        """Somebody may want the first answer: not of what is known to be slow."""

    def due(self, now: float) -> bool:
        if self.answer is None:
            return True
        if self.every == ONCE:
            return self.answer.trouble is not None
        return now - self.answer.at >= self.every - _ROUNDING

    def put(self, handle: Any) -> None:
        """Ask, and keep the answer or the reason why there is none. Raises `LostError`."""
        began = time.monotonic()
        fields, trouble = self._asked(handle)
        ended = time.monotonic()
        self.slow = not self.waits or ended - began > SLOW_CALL
        self.answer = Answer(ended, fields, trouble)

    def told(self, now: float) -> tuple[Json, str | None]:
        """The fields that are known now, and why others are not."""
        if self.answer is None:
            return {}, "not read yet: the driver is slow" if self.waits else None
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
        """None at the first reading, and after the counter was reset."""
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
