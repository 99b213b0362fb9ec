"""Signals as something to poll, with who sent them."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from dataclasses import dataclass

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What asks a job to end."""
FORWARDED = (*ASKING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGTSTP)
TAKEN = frozenset((*FORWARDED, signal.SIGCHLD, signal.SIGWINCH))

_RECORD = struct.Struct("=IiiI112x")  # struct signalfd_siginfo: signo, errno, code, pid of sender
_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Received:
    signal: signal.Signals
    from_kernel: bool
    """The terminal (or the kernel) sent it: to the whole foreground group."""
    sender: int


class Inbox:
    """Takes TAKEN out of the usual delivery until closed. `before`: the mask the job must have."""

    def __init__(self) -> None:
        # Ignored by the parent, children would vanish unwaited.
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
        libc = ctypes.CDLL(None, use_errno=True)
        mask = ctypes.create_string_buffer(128)  # sizeof(sigset_t) of glibc and musl
        libc.sigemptyset(mask)
        for number in TAKEN:
            libc.sigaddset(mask, int(number))
        self.descriptor = int(libc.signalfd(-1, mask, _NONBLOCK | _CLOEXEC))
        if self.descriptor < 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
            raise OSError(ctypes.get_errno(), "signalfd")

    def read(self) -> list[Received]:
        """All that came since the last call."""
        try:
            data = os.read(self.descriptor, 64 * _RECORD.size)
        except BlockingIOError:
            return []
        received = []
        for number, _, code, sender in _RECORD.iter_unpack(data):
            received.append(Received(signal.Signals(number), code > 0, sender))
        return received

    def stop_as_told(self) -> None:
        """Stop this process the way SIGTSTP would have, until somebody continues it."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    def close(self) -> None:
        os.close(self.descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
