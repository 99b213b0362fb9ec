"""Frames for the live screen, made one after the other in a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.frame_source import Source
from mgpu_doctor.report import text

LEAST_REST = 4.0
"""Rests at least so many times as long as it computed for a frame: the screen is given a fifth of a
core at most, and says in its head how late that makes it. Waiting for a slow driver is free."""


class FrameMade(Message):
    """A frame is ready. A newer one takes the place of one that still waits to be drawn."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, FrameMade)


class FrameMissed(Message):
    """No frame could be made; `why`: a few words of the error."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Frames:
    """To be gone through by one thread and steered from another. `interval`: seconds between
    frames."""

    def __init__(self, source: Source, interval: float) -> None:
        self.source = source
        self._interval = interval
        self._left: list[Source] = []
        """Sources that are shown no more; the thread that asks them closes them."""
        self._wake = threading.Event()
        self._over = False

    def turn_to(self, source: Source) -> None:
        """The next frame shall be of another source."""
        self._left.append(self.source)
        self.source = source
        self.hasten()

    def hasten(self) -> None:
        """The next frame is due now."""
        self._wake.set()

    def end(self) -> None:
        self._over = True
        self._wake.set()

    def __iter__(self) -> Iterator[FrameMade | FrameMissed]:
        """Until the end. Raises what the source does where there is no frame yet to go on with."""
        before = due = time.monotonic()
        some = False
        while not self._over:
            began, computed = time.monotonic(), time.thread_time()
            made = self._next(began - before, max(0.0, began - due), forgiving=some)
            some = True
            yield made
            took = time.thread_time() - computed
            before, due = began, began + self._interval
            if self._wake.wait(max(due - time.monotonic(), LEAST_REST * took)):
                self._wake.clear()
                due = time.monotonic()
        for source in (*self._left, self.source):
            source.close()

    def _next(self, passed: float, late: float, *, forgiving: bool) -> FrameMade | FrameMissed:
        while self._left:
            self._left.pop().close()
        try:
            return FrameMade(replace(self.source.frame(passed), late=late, interval=self._interval))
        except Exception as error:
            if not forgiving:
                raise
            # A screen that is left open for days outlives what goes wrong meanwhile, such as an
            # update of the very files that it runs from.
            return FrameMissed(text.line(f"{type(error).__name__}: {error}"))
