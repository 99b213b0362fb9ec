"""Tells a signal sent to the doctor alone from one sent to its whole process group.

`timeout`, batch schedulers and shells signal the whole group: there the job has its signal
already, and a second one would interrupt its clean-up (torchrun's, for one, which then leaves its
workers behind). The kernel does not tell the two apart, so a process of the same group that
blocks every signal is looked at: a signal of the group is pending there, too.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PROGRAM = "/bin/cat"  # waits for the end of its input, which comes when the doctor ends
GRACE = 0.02
"""Seconds in which a signal reaches all of a group."""


class Canary:
    def __init__(self) -> None:
        self._pid = 0
        self._input = -1
        self._start()

    def sang(self, number: int) -> bool:
        """Whether the signal that just came to us came to the whole group. If so, one like it that
        came to us meanwhile is forgotten: the job had that, too."""
        if not self._pid:
            return False
        time.sleep(GRACE)
        if not self._pending() >> (number - 1) & 1:
            return False
        self.close()
        self._start()  # what is pending stays pending: only a new one can be asked again
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
