"""The tracing subprocess, seen from outside: asked, waited for as long as it may take, ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import IO

from mgpu_doctor.analysis.memory.settings import Settings
from mgpu_doctor.plan import wire
from mgpu_doctor.plan.wire import Answer, Refusal, WireError

_TAIL = 2000
"""Bytes of what the process printed last that are looked at for its last line."""


class Worker:
    """`target`: as `tracing.target` reads it; `limit`: seconds for one answer."""

    def __init__(self, target: str, limit: float, *, program: tuple[str, ...] = ()) -> None:
        self.limit = limit
        self._command = program or (sys.executable, "-m", "mgpu_doctor.plan.tracing", target)
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None

    def trace(self, settings: Settings, *, real: bool = False) -> Answer | Refusal:
        """A process that has died, or took too long, is started anew by the next request."""
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(wire.write_request(settings, real=real).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, time.monotonic() + self.limit)
            return wire.read_answer(line)
        except TimeoutError:
            why = f"it took more than {self.limit:.0f} s (--limit allows more)"
        except WireError as error:
            why = str(error)
        except (EOFError, OSError):
            why = self._death(process)
        self.end()
        return Refusal(why, target=False)

    def end(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(OSError):
                self._process.communicate()
        if self._printed is not None:
            self._printed.close()
        self._process = self._printed = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                start_new_session=True,  # what the user's code starts ends with it
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Raises TimeoutError, EOFError where the process is gone, WireError for a long line."""
        assert process.stdout is not None
        read = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not read.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                part = os.read(process.stdout.fileno(), 1 << 20)
                if not part:
                    raise EOFError
                read += part
                if len(read) > wire.MOST_BYTES:
                    raise WireError("the trace is too long")
        return bytes(read)

    def _death(self, process: subprocess.Popen[bytes]) -> str:
        """How it ended, with the last line it printed."""
        try:
            code = process.wait(timeout=self.limit)
        except subprocess.TimeoutExpired:
            return "the tracing process closed its output"
        how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        return f"the tracing process {how}{self._last_line()}"

    def _last_line(self) -> str:
        assert self._printed is not None
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - _TAIL))
        lines = self._printed.read(_TAIL).decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1].strip()[:300]})" if lines else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
