"""Starts threads that never receive a signal meant for the program.

The kernel delivers a signal for the process to any thread that does not block it. A program that
blocks a signal to wait for it (`sigwait`, `sigtimedwait`) would be killed if the probe's thread
received it.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable
from typing import Any

FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals that a thread's own fault raises: if they were blocked, the kernel would kill the process
without running any handler."""


def start(function: Callable[..., object], *arguments: Any) -> None:
    """Runs `function` in a new thread with all signals but `FAULTS` blocked. `threading` does not
    know the thread, and nobody waits for it at exit. Raises RuntimeError if no thread can be
    started."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {*FAULTS})
    try:
        _thread.start_new_thread(function, arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
