"""Real runs of `mgpu-doctor run` for tests: over pipes, over files and in a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 120.0


def doctor(recording: Path, *command: str, options: Sequence[str] = ("-q",)) -> list[str]:
    """The command line that runs `command` with this recording."""
    verb = [sys.executable, "-m", "mgpu_doctor", "run", *options, "--dir", str(recording)]
    return [*verb, "--", *command]


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def eventually(what: str | Callable[[], str], condition: Callable[[], Any]) -> Any:
    """Waits until the condition is true, and returns its value. `what`: what is waited for."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what() if callable(what) else what}")
        time.sleep(0.01)
    return value


def read_json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text())
    assert isinstance(content, dict)
    return content


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON lines; the last one may be incomplete."""
    whole, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def conduits(recording: Path) -> dict[int, int]:
    """The processes that copy this recording's output: pid -> parent's pid."""
    pids = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdecimal()
                and f"MGPU_DOCTOR_COPY={recording}/".encode() in (entry / "environ").read_bytes()
            ):
                stat = (entry / "stat").read_text()
                pids[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return pids


def state(pid: int) -> str:
    """The state letter of /proc/PID/stat; empty if there is no such process."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


class Terminal:
    """A pseudo-terminal in which a command runs in the foreground of its own session."""

    def __init__(self, command: Sequence[str], rows: int = 24, columns: int = 80) -> None:
        self.master, slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(slave)
        # At Ctrl-C the kernel sends the signal and then discards unread output, sometimes also what
        # the job prints in response.
        self.before[3] |= termios.NOFLSH
        termios.tcsetattr(slave, termios.TCSANOW, self.before)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,  # noqa: PLW1509 - there is no other way, and no thread
        )
        self.slave = slave
        self.output = b""

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read_until(self, text: bytes) -> bytes:
        """All output so far, at least up to `text`."""

        def there() -> bool:
            if select.select([self.master], [], [], 0.05)[0]:
                self.output += os.read(self.master, 65536)
            return text in self.output

        eventually(lambda: f"{text!r} in {self.output!r}", there)
        return self.output

    def end(self) -> tuple[int, bytes]:
        """Exit code and all output, once the command has ended."""

        def ended() -> bool:
            if select.select([self.master], [], [], 0.01)[0]:
                self.output += os.read(self.master, 65536)
                return False
            return self.process.poll() is not None

        eventually("the command's end", ended)
        assert self.unchanged(), "the terminal's settings changed"
        return self.process.returncode, self.output

    def unchanged(self) -> bool:
        """Whether its settings are those it had before the command."""
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)


@contextlib.contextmanager
def terminal(command: Sequence[str], rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    opened = Terminal(command, rows, columns)
    try:
        yield opened
    finally:
        opened.close()
