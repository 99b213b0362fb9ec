"""Forwards signals from the doctor to the job, unless the job received them already.

`timeout`, batch schedulers and shells signal the whole process group: the job has already received
its signal, and a second one would interrupt its clean-up (torchrun would leave its workers behind).
The kernel does not say whether a signal was sent to the group, so a process in the same group, the
`SignalGroupProbe`, blocks every signal: one sent to the group is also pending there.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mgpu_doctor.launch.job_console import Console

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a job to end."""
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
    """Receives the TAKEN signals instead of their usual delivery, until closed. `before`: the
    signal mask that the job must have. SIGCHLD must not be ignored: `cli.main` sees to that."""

    def __init__(self) -> None:
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
        """Returns the signals since the last call."""
        try:
            data = os.read(self.descriptor, 64 * _RECORD.size)
        except BlockingIOError:
            return []
        received = []
        for number, _, code, sender in _RECORD.iter_unpack(data):
            received.append(Received(signal.Signals(number), code > 0, sender))
        return received

    def stop_as_asked(self) -> None:
        """Stops this process as SIGTSTP would, until it is continued."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})

    def close(self) -> None:
        os.close(self.descriptor)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)


PROGRAM = "/bin/cat"  # waits for the end of its input, which is closed when the doctor ends
GRACE = 0.02
"""Seconds within which a signal reaches the whole group."""


class SignalGroupProbe:
    """A process that receives only signals sent to the doctor's whole process group."""

    def __init__(self) -> None:
        self._pid = 0
        self._input = -1
        self._start()

    def was_sent_to_group(self, number: int) -> bool:
        """Returns whether the signal we just received was sent to the whole group. If so, an equal
        one that we received meanwhile is dropped: the job got it, too."""
        if not self._pid:
            return False
        time.sleep(GRACE)
        if not self._pending() >> (number - 1) & 1:
            return False
        self.close()
        self._start()  # pending signals stay pending: only a new process can detect the next one
        signal.sigtimedwait({number}, 0)
        return True

    def close(self) -> None:
        if self._pid:
            os.close(self._input)
            os.kill(self._pid, signal.SIGKILL)  # if stopped, it would not see the end
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _start(self) -> None:
        theirs, self._input = os.pipe()
        try:
            self._pid = os.posix_spawn(
                PROGRAM,
                ["cat"],
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsigmask=signal.valid_signals(),
            )
        except OSError:
            os.close(self._input)  # without one, every signal is passed on
        finally:
            os.close(theirs)

    def _pending(self) -> int:
        pending = 0
        try:
            status = Path(f"/proc/{self._pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in ("SigPnd", "ShdPnd"):
                pending |= int(value, 16)
        return pending


class SignalForwarder:
    """Waits for the job and forwards signals. `asked`: name of the first signal that asked the job
    to end, if it came through us or from the terminal, and not from the job itself."""

    def __init__(
        self, pid: int, inbox: Inbox, console: Console, group_probe: SignalGroupProbe
    ) -> None:
        self.asked: str | None = None
        self._pid = pid
        self._inbox = inbox
        self._console = console
        self._group_probe = group_probe

    def wait(self, own: Callable[[int], bool]) -> int:
        """Waits for the job's first process and returns its wait status. `own`: whether a pid
        belongs to the job."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                # The signal that ended it, or one that came too late.
                for received in self._inbox.read():
                    self._note(received, own)
                return status
            links = {link.control.fileno(): link for link in self._console.links}
            poll = select.poll()
            for descriptor in (self._inbox.descriptor, *links):
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor in links:
                    if b"w" in self._console.heard(links[descriptor]):
                        # The first SIGWINCH came before the job's terminal had its new size.
                        os.killpg(os.getpgrp(), signal.SIGWINCH)
                    continue
                for received in self._inbox.read():
                    self._pass_on(received, own)

    def patient(self) -> bool:
        """Reads the received signals; returns False if one asks us to stop waiting."""
        return not any(received.signal in ASKING for received in self._inbox.read())

    def _note(self, received: Received, own: Callable[[int], bool]) -> None:
        if received.signal in ASKING and not own(received.sender):
            self.asked = self.asked or received.signal.name

    def _pass_on(self, received: Received, own: Callable[[int], bool]) -> None:
        number = received.signal
        self._note(received, own)
        if number == signal.SIGWINCH and received.from_kernel:
            self._console.resize()
        elif (
            number in FORWARDED
            and not received.from_kernel
            and not self._group_probe.was_sent_to_group(number)
        ):
            os.kill(self._pid, number)
        if number == signal.SIGTSTP:
            self._inbox.stop_as_asked()
