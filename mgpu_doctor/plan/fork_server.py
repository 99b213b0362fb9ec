"""The process that loads torch or TensorFlow once, and the children it forks for tracing.

This is the doctor's side: it starts them, sends requests, waits up to a limit, ends them.
"""

from __future__ import annotations

import os
import selectors
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

from mgpu_doctor.analysis.memory.memory_plan import Settings
from mgpu_doctor.formatting import format_signal
from mgpu_doctor.plan import tracing_protocol
from mgpu_doctor.plan.tracing.tracing_server import END
from mgpu_doctor.plan.tracing_protocol import Answer, Refusal, WireError

_TAIL = 2000
"""Bytes of a process's output that are searched for its last line."""


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process. `printed`: what it and its own children print."""

    number: int
    connection: socket.socket
    printed: IO[bytes]

    def kill(self) -> None:
        _kill(self.number)

    def close(self) -> None:
        self.connection.close()
        self.printed.close()


class ForkServer:
    """The server process; it starts with the first child. `target`: `module:function`, as for
    `user_function`."""

    def __init__(self, target: str, *, program: tuple[str, ...] = ()) -> None:
        self._command = program or (
            *(sys.executable, "-m", "mgpu_doctor.plan.tracing.tracing_server"),
            target,
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()  # one request at a time

    def fork(self, deadline: float) -> Child:
        """Returns a new child. `deadline`: on the monotonic clock.

        Raises TimeoutError, or EOFError if the fork server has died: its argument says how.
        """
        ours, theirs = socket.socketpair()
        printed = tempfile.TemporaryFile()  # noqa: SIM115  (the owner of the child closes it)
        with theirs, self._lock:
            self._start()
            try:
                number = self._ask(b"child", deadline, theirs.fileno(), printed.fileno())
            except (OSError, EOFError):
                ours.close()
                printed.close()
                raise
        return Child(number, ours, printed)

    def describe_end(self, child: Child, deadline: float) -> str:
        """Returns how a child that closed its connection ended, with the last line it printed."""
        child.kill()  # has no effect on one that has ended
        with self._lock:
            code = self._ask(END + b"%d" % child.number, deadline)
        return _describe_exit(code, child.printed)

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

    def _ask(self, question: bytes, deadline: float, *files: int) -> int:
        if self._process is None:
            raise EOFError("the tracing process has ended")
        self._control.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            socket.send_fds(self._control, [question], files)
            answer = self._control.recv(64)
        except TimeoutError:
            self.close()  # a late answer would be taken as the answer to the next request
            raise
        except OSError:
            answer = b""
        if not answer:
            code = self._process.wait()
            how = _describe_exit(code, self._printed)
            self.close()
            raise EOFError(how)
        return int(answer)


def _kill(number: int) -> None:
    """Kills the process and its whole session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)


def _describe_exit(code: int, printed: IO[bytes]) -> str:
    how = f"was ended by {format_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"the tracing process {how}{_last_line(printed)}"


def _last_line(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read(_TAIL).decode("utf-8", "replace").strip().splitlines()
    return f" ({lines[-1].strip()[:300]})" if lines else ""


class Worker:
    """A process that traces. `limit`: seconds for one answer, loading included."""

    def __init__(self, server: ForkServer, limit: float) -> None:
        self.limit = limit
        self._server = server
        self._child: Child | None = None

    def trace(self, settings: Settings, *, real: bool = False) -> Answer | Refusal:
        """Returns the answer. A process that crashed or took too long is replaced at the next
        request."""
        deadline = time.monotonic() + self.limit
        try:
            child = self._child = self._child or self._server.fork(deadline)
            return self._answer(
                child, tracing_protocol.write_request(settings, real=real), deadline
            )
        except TimeoutError:
            why = f"it took more than {self.limit:.0f} s (--limit allows more)"
        except WireError as error:
            why = str(error)
        except EOFError as error:
            why = str(error)
        self.close()
        return Refusal(why, target=False)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.close()
        self._child = None

    def _answer(self, child: Child, request: str, deadline: float) -> Answer | Refusal:
        """Returns the answer. Raises TimeoutError, WireError, or EOFError if the process is
        gone."""
        try:
            child.connection.sendall(request.encode() + b"\n")
            return tracing_protocol.read_answer(_read_line(child.connection, deadline))
        except ConnectionError:
            raise EOFError(self._server.describe_end(child, deadline)) from None


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Reads one line. Raises TimeoutError, ConnectionError if the process has ended, WireError for
    a line that is too long."""
    read = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while not read.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            part = connection.recv(1 << 20)
            if not part:
                raise ConnectionError
            read += part
            if len(read) > tracing_protocol.MOST_BYTES:
                raise WireError("the trace is too long")
    return bytes(read)
