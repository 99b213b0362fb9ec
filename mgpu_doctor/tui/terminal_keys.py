"""Reads keys from a terminal. Textual's thread for keys wakes up ten times per second to see
whether it should end, which took a tenth of what the live screen costs, and it ends the app when
what was typed or pasted is not UTF-8."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

if TYPE_CHECKING:
    from textual._xterm_parser import XTermParser

SOON = 1.0
"""Seconds after keys in which the parser is asked every `TICK`: it decides after 0.1 s (`ESCDELAY`)
whether an escape was a key of its own."""
TICK = 0.1
MOST = 1 << 12
"""Bytes that are read at once."""


class KeysOver(threading.Event):
    """Ends the thread for keys: `woken` is a descriptor that can be read once it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def set(self) -> None:
        super().set()
        os.write(self._wake, b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.woken, 1 << 10)
        super().clear()


def read_keys(keys: int, over: KeysOver, parser: XTermParser) -> Iterator[Message]:
    """Yields what arrives at the descriptor `keys`, until `over` is set or nothing can arrive any
    more. Bytes that are not UTF-8 are read as U+FFFD, so the end of a paste is still recognised."""
    decode = getincrementaldecoder("utf-8")("replace").decode
    until = 0.0
    while not over.is_set():
        idle = time.monotonic() >= until
        ready, _, _ = select.select([keys, over.woken], [], [], None if idle else TICK)
        if keys in ready:
            data = os.read(keys, MOST)
            if not data:
                return
            until = time.monotonic() + SOON
            if text := decode(data):  # nothing if a character is incomplete
                yield from parser.feed(text)
        yield from parser.tick()


class PatientDriver(LinuxDriver):
    """Textual's driver of a terminal, whose thread for keys sleeps while there are none. Textual's
    parser is private: where it is another one, Textual's own loop reads the keys."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._over = self.exit_event = KeysOver()

    def run_input_thread(self) -> None:
        try:
            from textual._xterm_parser import XTermParser
        except ImportError:
            super().run_input_thread()
            return
        for event in read_keys(self.fileno, self._over, XTermParser(self._debug)):
            self.process_message(event)
