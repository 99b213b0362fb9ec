"""One job, done again and again in a thread of its own, whenever somebody asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Rounds:
    """A driver that hangs stops this thread only. Asked while a round goes on: one more follows."""

    def __init__(self, job: Callable[[], None], name: str) -> None:
        self._job = job
        self._changed = threading.Condition()
        self._asked = self._done = 0
        self._over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def ask(self) -> int:
        """Have a round that begins after now; its number."""
        with self._changed:
            if self._asked == 0 and not self._over:
                self._thread.start()
            self._asked += 1
            self._changed.notify_all()
            return self._asked

    def wait(self, number: int, seconds: float) -> bool:
        """Whether that round is over, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= number or self._over, seconds)

    def stop(self, seconds: float) -> bool:
        """Let the thread end after its round; whether it has."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def over(self) -> bool:
        """For long jobs to look at between their parts."""
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
