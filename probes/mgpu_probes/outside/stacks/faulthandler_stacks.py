"""Stacks by Python's faulthandler: requested by a signal, and parsed from its text.

A signal without a handler kills the process. It is sent only to an instrumented rank that
promised to write its stacks on it, and only while the kernel says that the process handles it.
It is the last resort: it interrupts calls such as sleep(3) and epoll_wait(2) early (signal(7))."""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.processes import PROC
from mgpu_probes.outside.stacks import stack_threads
from mgpu_probes.outside.stacks.stack_threads import Frame, Json

MOST_TEXT = 4 << 20
ALLOWED = (signal.SIGUSR1, signal.SIGUSR2)
_POLL = 0.01
_STILL, _STILL_LONGER = 5, 50
"""Polls without growth of the file after which the dump counts as complete, with and without the
main thread: it has no end mark, and its writer may have to wait for a core."""
_THREAD = re.compile(
    r"^(?:Current t|T)hread 0x[0-9a-fA-F]+(?: \[(?P<name>.*)\])? \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')
_CUT = re.compile(r"^\.\.\.$")


def parse_faulthandler(text: str) -> list[Json]:
    """The threads in faulthandler's text; those without a frame of Python are left out.

    faulthandler prints the newest thread first, and at most a hundred, so the last is the main
    thread if it starts as a program does: incomplete text may end in any thread.
    """
    found: list[tuple[str | None, list[Frame]]] = []
    inside = cut = False
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            found.append((thread["name"], []))
            inside = True
        elif inside and (frame := _FRAME.match(line)):
            at = int(frame["line"]) if frame["line"].isdigit() else None
            found[-1][1].append((frame["function"], frame["file"], at))
        elif _CUT.match(line):
            cut = True
        elif not line.startswith("  "):
            inside = False
    last = found[-1][1] if found else []
    main = last if last and not cut and last[-1][0] in stack_threads.STARTS else None
    return [
        stack_threads.make_thread(frames, main=frames is main, name=name)
        for name, frames in found
        if frames
    ]


def request_stacks(
    pid: int, dump_file: str, number: int, end: float, *, started: int | None = None
) -> list[Json]:
    """The threads that a rank writes to its file on this signal. `started`: its start ticks; `end`:
    deadline on the monotonic clock, in seconds.

    Raises PermissionError unless the process handles the signal and the file is this user's,
    TimeoutError if nothing is written in time, another OSError if the file cannot be read.
    """
    file = os.open(dump_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{dump_file} is not a file of this user")
        _send(pid, number, started)
        return _written(file, status.st_size, end)
    finally:
        os.close(file)


def is_caught(pid: int, number: int, proc: Path = PROC) -> bool:
    """Whether the process has a handler for the signal: SigCgt in proc_pid_status(5)."""
    with suppress(OSError, ValueError):
        for line in (proc / str(pid) / "status").read_text("utf-8", "replace").split("\n"):
            key, _, mask = line.partition(":")
            if key == "SigCgt":
                return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def _send(pid: int, number: int, started: int | None) -> None:
    """Sends the signal through a pidfd, so that a reused pid cannot receive it."""
    if number not in ALLOWED:
        raise PermissionError(f"signal {number} is not one that asks for stacks")
    target = os.pidfd_open(pid)
    try:
        process = processes.read_process(pid)
        if process is None or process.ended or (started and process.start_ticks != started):
            raise ProcessLookupError(f"process {pid} has ended")
        if process.state in "Tt":
            raise PermissionError("the process is stopped and would not answer")
        if not is_caught(pid, number):
            raise PermissionError(f"the process does not catch signal {number}")
        signal.pidfd_send_signal(target, number)
    finally:
        os.close(target)


def _written(file: int, start: int, end: float) -> list[Json]:
    size, still = start, 0
    while True:
        late = time.monotonic() > end
        if late and still < _STILL:
            raise TimeoutError("the process wrote no stacks in time")
        if still >= _STILL:
            raw = os.pread(file, min(size - start, MOST_TEXT), start)
            found = parse_faulthandler(raw.decode("utf-8", "replace"))
            if late or still >= _STILL_LONGER or any(json["main"] for json in found):
                return found
        time.sleep(_POLL)
        now = os.fstat(file).st_size
        still = still + 1 if now == size and now > start else 0
        size = now
