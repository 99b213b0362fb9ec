"""Stands by a running job: passes on what is meant for it, until its first process has ended."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

from mgpu_doctor.launch.canary import Canary
from mgpu_doctor.launch.console import Console
from mgpu_doctor.launch.signals import ASKING, FORWARDED, Inbox, Received


class Attendant:
    """`asked`: the first signal that asked the job to end, by name, unless it came from the job
    itself; so far as it came by us or from the terminal."""

    def __init__(self, pid: int, inbox: Inbox, console: Console, canary: Canary) -> None:
        self.asked: str | None = None
        self._pid = pid
        self._inbox = inbox
        self._console = console
        self._canary = canary

    def wait(self, own: Callable[[int], bool]) -> int:
        """The wait status of the job's first process. `own`: whether a pid is of the job."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                for received in self._inbox.read():  # by what it ended, or what came too late
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
        """Read the signals that came; False if one asks us not to wait any longer."""
        return not any(received.signal in ASKING for received in self._inbox.read())

    def _note(self, received: Received, own: Callable[[int], bool]) -> None:
        if received.signal in ASKING and not own(received.sender):
            self.asked = self.asked or received.signal.name

    def _pass_on(self, received: Received, own: Callable[[int], bool]) -> None:
        number = received.signal
        self._note(received, own)
        if number == signal.SIGWINCH and received.from_kernel:
            self._console.resize()
        elif number in FORWARDED and not received.from_kernel and not self._canary.sang(number):
            os.kill(self._pid, number)
        if number == signal.SIGTSTP:
            self._inbox.stop_as_told()
