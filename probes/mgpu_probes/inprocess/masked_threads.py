"""Starts threads that never receive a signal meant for the program.

The kernel delivers a signal for the process to any thread that does not block it. A program that
blocks a signal to wait for it (`sigwait`, `sigtimedwait`) would be killed if the probe's thread
received it.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a thread's own fault raises: if they were blocked, the kernel would kill the process
without running any handler."""


def start(function: Callable[..., object], *arguments: Any) -> None:
    """Runs `function` in a new thread with all signals but `FAULTS` blocked. `threading` does not
    know the thread, and nobody waits for it at exit. Raises RuntimeError if no thread can be
    started."""
    with _blocking():
        _thread.start_new_thread(function, arguments)


def start_awaited(function: Callable[[], object], name: str) -> Callable[[], None]:
    """The same in a thread that the interpreter waits for at its exit. Returns what waits for
    it."""
    thread = threading.Thread(target=function, name=name)
    with _blocking():
        thread.start()
    return thread.join


@contextmanager
def _blocking() -> Iterator[None]:
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {*FAULTS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
