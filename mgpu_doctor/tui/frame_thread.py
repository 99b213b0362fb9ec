"""Makes the live screen's frames one after another in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from msgspec import structs
from textual.message import Message

from mgpu_doctor.live.frame import Frame
from mgpu_doctor.live.frame_source import LEAST_REST, Announcer, Source
from mgpu_doctor.report import text

EARLIEST = 0.5
"""Share of the interval after which a frame is made at once if a step arrives; or sooner, if the
frame before last began an interval ago. So there are at most twice as many frames, and a step does
not wait because a frame was due just before it."""


class FrameMade(Message):
    """A frame is ready. It replaces an older one that is not drawn yet."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, FrameMade)


class FrameMissed(Message):
    """Making a frame failed. `why`: the error in a few words."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why

    @property
    def notice(self) -> str:
        """What the screen says then."""
        return f"The screen is not being updated: {self.why}. If this persists, restart top."


class Frames:
    """Frames of a source, iterated by one thread and controlled from another. `interval`: seconds
    between frames."""

    def __init__(self, source: Source, interval: float) -> None:
        self.source = source
        self._interval = interval
        self._left: list[Source] = []
        """Sources no longer shown; the thread that reads them closes them."""
        self._wake = threading.Event()
        self._step = threading.Event()
        """A step has arrived since the last frame, or none is waited for."""
        self._over = False
        self._listen()

    def _listen(self) -> None:
        self._announced = isinstance(self.source, Announcer)
        if isinstance(self.source, Announcer):
            self.source.announce_steps(self._step.set)

    def turn_to(self, source: Source) -> None:
        """Switches to another source from the next frame on."""
        self._left.append(self.source)
        self.source = source
        self._listen()
        self.hasten()

    def hasten(self) -> None:
        """Makes the next frame now."""
        self._wake.set()
        self._step.set()

    def end(self) -> None:
        self._over = True
        self.hasten()

    def __iter__(self) -> Iterator[FrameMade | FrameMissed]:
        """Yields frames until closed. Raises the source's error if no frame was made yet."""
        before = due = time.monotonic()
        some = False
        while not self._over:
            began, computed = time.monotonic(), time.thread_time()
            made = self._next(began - before, max(0.0, began - due), forgiving=some)
            some = True
            yield made
            least = LEAST_REST * (time.thread_time() - computed)
            early = min(began + EARLIEST * self._interval, before + self._interval)
            before, due = began, began + self._interval
            now = time.monotonic()
            if self._rest(max(early - now, least), max(due - now, least)):
                due = time.monotonic()
        for source in (*self._left, self.source):
            source.close()

    def _rest(self, early: float, longest: float) -> bool:
        """Waits until the next frame is due; whether it came earlier because something happened.
        `early`: seconds after which a step brings it."""
        if self._announced:
            early = max(0.0, early)
            happened = self._wake.wait(early) or self._step.wait(max(0.0, longest - early))
        else:
            happened = self._wake.wait(longest)
        self._wake.clear()
        self._step.clear()
        return happened

    def _next(self, passed: float, late: float, *, forgiving: bool) -> FrameMade | FrameMissed:
        while self._left:
            self._left.pop().close()
        try:
            made = self.source.frame(passed)
            return FrameMade(structs.replace(made, late=late, interval=self._interval))
        except Exception as error:
            if not forgiving:
                raise
            # A screen left open for days must survive errors such as an update of the files that it
            # runs from.
            return FrameMissed(text.line(f"{type(error).__name__}: {error}"))
