"""What is asked of a device: how often, how long the answer took, and what it was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from mgpu_probes.outside.devices.errors import GONE, Json, LostError, is_lacking, sentence

ONCE = math.inf
"""Never changes, so it is asked until it is known."""
SLOWLY = 10.0
"""Seconds between questions of what changes slowly: links, errors, limits."""
SLOW_CALL = 0.005
"""Seconds. A question that took longer is asked apart from the rest, who do not wait for it."""
STALE = 30.0
"""Seconds after which an answer that should long have been renewed is no longer shown."""
_ROUNDING = 0.05
"""Seconds by which a question may come early: samples are never exactly a period apart."""


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
        """Ask, and keep the answer or why there is none. Raises `LostError`."""
        began = time.monotonic()
        fields, trouble = self._asked(handle)
        ended = time.monotonic()
        self.slow = not self.waits or ended - began > SLOW_CALL
        self.answer = Answer(ended, fields, trouble)

    def told(self, now: float) -> tuple[Json, str | None]:
        """The fields that are known now, and what to say of the others."""
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
            if error.value in GONE:
                raise LostError(sentence(error)) from error
            return {}, None if is_lacking(error) and not self.loud else sentence(error)
        except AttributeError as error:
            return {}, sentence(error) if self.loud else None
        except ValueError as error:
            return {}, str(error)


class Rate:
    """Of a counter, per second, since the look before."""

    def __init__(self) -> None:
        self.last: tuple[float, float] | None = None

    def of(self, counter: float | None, now: float) -> float | None:
        """None at the first look, and after the counter began anew."""
        before, self.last = self.last, None if counter is None else (now, counter)
        if before is None or counter is None or counter < before[1] or now <= before[0]:
            return None
        return (counter - before[1]) / (now - before[0])
