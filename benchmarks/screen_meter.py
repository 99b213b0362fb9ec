"""When a figure leaves on the terminal: `mgpu-doctor top` on a pseudo-terminal, read as it draws.

The figure is the job's newest step, in the second line of the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mgpu_doctor.recording.box import read_box

ROWS, COLUMNS = 60, 200
TICKS = os.sysconf("SC_CLK_TCK")
KEPT = 256
"""Characters of the last read that are kept: a read may end in the middle of a number."""
EXAMINER = b"watch_process"
"""Part of the command line of the process that examines the job. Others are agents."""
_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_STEP = re.compile(rb"\bstep (\d+)(?=\D)")


class Screen:
    """A command on a pseudo-terminal. Ends with the `with` block."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, self._slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, size)
        self._process = subprocess.Popen(
            command,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=dict(environment),
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.shown: list[tuple[int, int]] = []
        """Monotonic nanoseconds, and the newest step that the terminal had received then."""
        self.sent = 0
        """Bytes."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._reader.join()
        os.close(self._master)
        os.close(self._slave)

    @property
    def examiner(self) -> int | None:
        """The process of the command that examines the job; None: there is none now."""
        pid = self.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return next((int(child) for child in children if EXAMINER in _command_of(child)), None)

    def _read(self) -> None:
        rest, newest = b"", -1
        while self._process.poll() is None:
            if not select.select([self._master], [], [], 0.1)[0]:
                continue
            data = os.read(self._master, 1 << 16)
            at = time.monotonic_ns()
            self.sent += len(data)
            rest = _CONTROL.sub(b"", rest + data)
            steps = [int(number) for number in _STEP.findall(rest)]
            if steps and max(steps) > newest:
                newest = max(steps)
                self.shown.append((at, newest))
            rest = rest[-KEPT:]


def _command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def cpu_of(pid: int | None) -> float:
    """Processor seconds of a process so far; 0 without one."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def first_ends(boxes: Iterable[Path]) -> dict[int, int]:
    """Step -> monotonic nanoseconds at which the first rank recorded it."""
    ends: dict[int, int] = {}
    for path in boxes:
        steps = read_box(path).steps
        for number, end in zip(steps["step"].tolist(), steps["end_ns"].tolist(), strict=True):
            ends[number] = min(end, ends.get(number, end))
    return ends


def latencies(
    ends: Mapping[int, int], shown: Sequence[tuple[int, int]], begin: int, end: int
) -> npt.NDArray[np.float64]:
    """Seconds from the record of each step between two moments (monotonic nanoseconds) until the
    screen showed it or a later one."""
    times = np.array([at for at, _ in shown])
    steps = np.array([step for _, step in shown])
    wanted = [step for step, at in ends.items() if begin <= at < end]
    places = np.searchsorted(steps, wanted)
    late = [
        (times[place] - ends[step]) / 1e9
        for step, place in zip(wanted, places, strict=True)
        if place < len(times)
    ]
    return np.array(late)
