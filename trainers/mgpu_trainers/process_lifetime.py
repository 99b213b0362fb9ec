"""Ends ranks when their launcher ends, and launchers by the signal that asked them to end.

Imports no framework.
"""

import ctypes
import os
import signal
from typing import NoReturn

_SET_PDEATHSIG = 1  # of prctl(2)
_libc = ctypes.CDLL(None)


class AskedToEnd(Exception):  # noqa: N818  # no error: somebody asked
    """A launcher was asked to end, by `signal`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def raise_when_asked(*numbers: signal.Signals) -> None:
    """From here on these signals raise AskedToEnd."""

    def leave(number: int, _frame: object) -> NoReturn:
        raise AskedToEnd(number)

    for number in numbers:
        signal.signal(number, leave)


def ignore(*numbers: signal.Signals) -> None:
    """From here on these signals do nothing."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Has Linux signal this process when its parent ends, whatever ends it; elsewhere nothing."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_SET_PDEATHSIG, number)


def end_with(launcher: int) -> None:
    """The same by SIGTERM, for the pid of the parent as it was when this process began.

    The parent may be gone already: if torchrun is stopped while it starts ranks, it does not end
    the ranks that it has started.
    """
    end_with_parent(signal.SIGTERM)
    if os.getppid() != launcher:
        signal.raise_signal(signal.SIGTERM)
