"""Commands one after the other, each a session of its own. What asks us to end is passed on to the
one that runs, which is then the last."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from mgpu_doctor.launch.signals import ASKING


class Turns:
    """Takes the signals while it is entered; from the main thread only. `asked`: the first one."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._running: subprocess.Popen[bytes] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Turns:
        self._before = {number: signal.signal(number, self._pass_on) for number in ASKING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def run(self, command: Sequence[str]) -> int:
        """Its exit code, or 128 + the signal that ended it, when it is over. It is given nothing to
        read, and what it prints is not shown. Raises OSError."""
        nowhere = subprocess.DEVNULL
        # In our own session the terminal's Ctrl-C would reach the job twice.
        self._running = subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        if self.asked is not None:  # while it was started
            self._tell(self.asked)
        code = self._running.wait()
        self._running = None
        return code if code >= 0 else 128 - code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number)
        self._tell(signal.Signals(number))

    def _tell(self, number: signal.Signals) -> None:
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.kill(self._running.pid, number)
