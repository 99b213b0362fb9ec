"""Starts threads in which no signal of the program's is ever delivered.

The kernel hands a signal for the process to any thread that does not block it. A program that
blocks a signal to wait for it (`sigwait`, `sigtimedwait`) would die by it in a thread of ours.
"""

from __future__ import annotations

import _thread
import signal
from collections.abc import Callable
from typing import Any

FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""What a thread raises itself: if blocked, the kernel kills the process without a word."""


def start(function: Callable[..., object], *arguments: Any) -> None:
    """Runs `function` in a new thread that `threading` does not know, which nobody waits for, with
    all signals blocked but `FAULTS`. Raises RuntimeError where no thread can be started."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {*FAULTS})
    try:
        _thread.start_new_thread(function, arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
