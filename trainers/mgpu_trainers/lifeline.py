"""Lets a process end with the one that started it. Imports no framework."""

import ctypes
import os
import signal

_SET_PDEATHSIG = 1  # of prctl(2)
_libc = ctypes.CDLL(None)


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Linux sends us the signal when our parent ends, whatever ends it; elsewhere nothing does."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_SET_PDEATHSIG, number)


def end_with(launcher: int) -> None:
    """The same by SIGTERM, for the pid of the parent as it was when we began. It may have gone
    meanwhile: torchrun that is asked to end while it starts its ranks forgets those it has."""
    end_with_parent(signal.SIGTERM)
    if os.getppid() != launcher:
        signal.raise_signal(signal.SIGTERM)
