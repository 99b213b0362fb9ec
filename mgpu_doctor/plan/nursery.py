"""The process that loads torch or TensorFlow, once, and whose children trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import IO

from mgpu_doctor.plan.tracing.children import END

_TAIL = 2000
"""Bytes of what a process printed last that are looked at for its last line."""


@dataclass(frozen=True, slots=True)
class Child:
    """`printed`: what it and its own children print."""

    number: int
    connection: socket.socket
    printed: IO[bytes]

    def kill(self) -> None:
        _kill(self.number)

    def close(self) -> None:
        self.connection.close()
        self.printed.close()


class Nursery:
    """`target`: as `tracing.pointing` reads it. It is started with the first child."""

    def __init__(self, target: str, *, program: tuple[str, ...] = ()) -> None:
        self._command = program or (sys.executable, "-m", "mgpu_doctor.plan.tracing", target)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()  # one question at a time

    def child(self, deadline: float) -> Child:
        """`deadline`: on the monotonic clock. Raises TimeoutError, EOFError where the nursery has
        died: its argument says how."""
        ours, theirs = socket.socketpair()
        printed = tempfile.TemporaryFile()  # noqa: SIM115  (whoever has the child closes it)
        with theirs, self._lock:
            self._start()
            try:
                number = self._asked(b"child", deadline, theirs.fileno(), printed.fileno())
            except (OSError, EOFError):
                ours.close()
                printed.close()
                raise
        return Child(number, ours, printed)

    def how_ended(self, child: Child, deadline: float) -> str:
        """Of a child that has closed its connection, with the last line it printed."""
        child.kill()  # changes nothing about one that is over
        with self._lock:
            code = self._asked(END + b"%d" % child.number, deadline)
        return _described(code, child.printed)

    def close(self) -> None:
        if self._process is not None:
            _kill(self._process.pid)
            self._process.wait()
            self._control.close()
            self._printed.close()
        self._process = None

    def _start(self) -> None:
        if self._process is not None:
            return
        self._control, theirs = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (`close` does)
        with theirs:
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stdout=self._printed,
                stderr=self._printed,
                start_new_session=True,
            )

    def _asked(self, question: bytes, deadline: float, *files: int) -> int:
        if self._process is None:
            raise EOFError("the tracing process has ended")
        self._control.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            socket.send_fds(self._control, [question], files)
            said = self._control.recv(64)
        except TimeoutError:
            self.close()  # an answer that comes later would be taken for that to another question
            raise
        except OSError:
            said = b""
        if not said:
            code = self._process.wait()
            how = _described(code, self._printed)
            self.close()
            raise EOFError(how)
        return int(said)


def _kill(number: int) -> None:
    """The process and all of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _described(code: int, printed: IO[bytes]) -> str:
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"the tracing process {how}{_last_line(printed)}"


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read(_TAIL).decode("utf-8", "replace").strip().splitlines()
    return f" ({lines[-1].strip()[:300]})" if lines else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
