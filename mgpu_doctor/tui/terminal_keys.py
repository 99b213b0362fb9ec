"""Waits for keys. Textual's thread for keys wakes up ten times per second to see whether it should
end, which took a tenth of what the live screen costs."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

SOON = 1.0
"""Seconds after keys in which Textual's own waiting remains: it decides after 0.1 s (`ESCDELAY`)
whether an escape was a key of its own."""


class KeysOver(threading.Event):
    """Ends the thread for keys, which asks before each of its short waits. It gets its answer when
    there are keys, or when it should end. `keys`: the descriptor that it reads."""

    def __init__(self, keys: int) -> None:
        super().__init__()
        self.reader: int | None = None
        """The identifier of the thread that reads the keys; others are answered at once."""
        self._keys = keys
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._until = 0.0

    def is_set(self) -> bool:
        if threading.get_ident() == self.reader and not super().is_set():
            self._wait()
        return super().is_set()

    def set(self) -> None:
        super().set()
        os.write(self._wake, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 1 << 10)
        super().clear()

    def _wait(self) -> None:
        idle = time.monotonic() >= self._until
        if select.select([self._keys, self._woken], [], [], None if idle else 0)[0]:
            self._until = time.monotonic() + SOON


class PatientDriver(LinuxDriver):
    """Textual's driver of a terminal, whose thread for keys sleeps while there are none."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._over = self.exit_event = KeysOver(self.fileno)

    def run_input_thread(self) -> None:
        self._over.reader = threading.get_ident()
        super().run_input_thread()
