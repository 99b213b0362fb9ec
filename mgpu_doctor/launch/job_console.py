"""The job's standard output and error: passed on byte for byte, with a copy in the recording."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import stat
import sys
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mgpu_probes.outside.jobs.rank_environment import VARIABLES

from mgpu_doctor.launch import output_forwarding

STREAMS = {1: "stdout", 2: "stderr"}
COPY_PATIENCE = 2.0
"""Seconds for the copy to reach a slow disk when the job is over."""
ASK_AGAIN = 1.0
"""Seconds after which an unanswered question is repeated: its reader may have been killed."""
_POLL_MS = 200
_SAFE = 64  # lowest descriptor that no file action of a spawn overwrites


@dataclass(frozen=True, slots=True)
class Link:
    """The doctor's end of a conduit."""

    control: socket.socket
    terminal: bool


class FileCopy:
    """A bounded copy of what a job writes directly into a file of the user's, such as `> out.log`:
    readers of a recording never follow paths in it."""

    def __init__(self, number: int, copy: Path) -> None:
        """Copies a file. `number`: the standard descriptor that refers to it."""
        self._path = f"/proc/self/fd/{number}"
        self._seen = _position(number)
        self._copy = output_forwarding.Copy(os.fsencode(copy))

    def catch_up(self) -> None:
        """Copies what is new since the last call; if it is too much, only its end. Raises
        `OSError`."""
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._seen:  # it was truncated
                self._seen = 0
            start = max(self._seen, size - output_forwarding.KEEP)
            file.seek(start)
            data = file.read(size - start)
        self._copy.add(data, start - self._seen)
        self._seen = start + len(data)


@dataclass(slots=True)
class Console:
    """The job's console. `streams`: the descriptors that the job gets instead of ours. `files`:
    streams that go directly into a file, and its name. `copies`: their copies."""

    streams: dict[int, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    copies: list[FileCopy] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def let_go(self) -> None:
        """Closes the job's ends, which the job has now: otherwise readers would never see the
        end."""
        for descriptor in set(self.streams.values()):
            os.close(descriptor)
        self.streams = {}

    def resize(self) -> None:
        """Passes on a new size of the real terminal."""
        for link in self.links:
            if link.terminal:
                _ask(link, b"w")

    def heard(self, link: Link) -> bytes:
        """Returns a conduit's message; removes the conduit if it is gone."""
        try:
            message = link.control.recv(64)
        except BlockingIOError:
            return b""
        except OSError:
            message = b""
        if not message:
            self.links.remove(link)
            link.control.close()
        return message

    def drain(self, wanted: Callable[[], bool], waker: int) -> None:
        """Waits until all of the job's output is written and copied.

        This takes as long as the reader of the output takes. `wanted` is called whenever the
        descriptor `waker` is readable; False ends the wait."""
        moving = list(self.links)
        copying = list(self.links)
        deadline = None
        asked_at = 0.0
        while copying:
            now = time.monotonic()
            if moving:
                deadline = now + COPY_PATIENCE
            elif deadline is not None and now > deadline:
                return
            if moving and now - asked_at >= ASK_AGAIN:
                asked_at = now
                for link in moving:
                    _ask(link, b"d")
            ready = _readable([waker, *(link.control.fileno() for link in copying)])
            if waker in ready and not wanted():
                return
            for link in [link for link in copying if link.control.fileno() in ready]:
                message = self.heard(link)
                if link in moving and (b"d" in message or not message):
                    moving.remove(link)
                if b"c" in message or not message:
                    copying.remove(link)

    def copy_files(self) -> None:
        """Copies what the job wrote into files since the last call. Raises `OSError`."""
        for copy in self.copies:
            copy.catch_up()


def stand_in_for_closed() -> None:
    """Occupies closed standard descriptors, so that no file of ours becomes the job's output. They
    are closed in the job: descriptors opened by Python are not inherited."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def connect(folder: Path) -> Console:
    """Sets up the channels for our own standard output and error, with copies in `folder`.

    Raises `OSError` if that is not possible, and then leaves nothing open.
    """
    console = Console()
    groups: dict[tuple[int, int], list[int]] = {}
    for number in STREAMS:
        state = os.fstat(number)
        if os.get_inheritable(number):  # else it is a stand-in: closed for the job
            groups.setdefault((state.st_dev, state.st_ino), []).append(number)
    try:
        for numbers in groups.values():
            name = "console" if len(numbers) > 1 else STREAMS[numbers[0]]
            mode = os.fstat(numbers[0]).st_mode
            if stat.S_ISREG(mode):
                console.files[name] = os.readlink(f"/proc/self/fd/{numbers[0]}")
                console.copies.append(FileCopy(numbers[0], folder / f"{name}.log"))
            elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
                job_end, link = _channel(numbers[0], folder / f"{name}.log")
                console.links.append(link)
                console.streams.update(dict.fromkeys(numbers, job_end))
    except OSError:
        console.let_go()
        for link in console.links:
            link.control.close()
        raise
    return console


def _channel(out: int, copy: Path) -> tuple[int, Link]:
    """Returns a channel into `out`: the job's end of it, and the link."""
    terminal = os.isatty(out)
    source, job_end = _terminal_like(out) if terminal else os.pipe()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        _start_conduit(source, out, theirs.fileno(), copy)
    except OSError:
        os.close(job_end)
        ours.close()
        raise
    finally:
        os.close(source)
        theirs.close()
    return job_end, Link(ours, terminal)


def _terminal_like(real: int) -> tuple[int, int]:
    """Returns a terminal with the same settings and size that changes no bytes: the real one
    does."""
    master, slave = os.openpty()
    settings = termios.tcgetattr(real)
    settings[1] &= ~termios.OPOST
    settings[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, fcntl.ioctl(real, termios.TIOCGWINSZ, bytes(8)))
    return master, slave


def _start_conduit(source: int, out: int, control: int, copy: Path) -> None:
    wanted = (
        (source, output_forwarding.CHANNEL),
        (out, output_forwarding.OUT),
        (control, output_forwarding.CONTROL),
    )
    safe = [(fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _SAFE), theirs) for ours, theirs in wanted]
    # The base interpreter, with the program on standard input: its command line then contains no
    # folder, so killing the doctor by a folder's name does not kill it.
    python = getattr(sys, "_base_executable", None) or sys.executable
    try:
        starter = os.posix_spawn(
            python,
            [python, "-I", "-S", "-"],
            {**_without_rank(os.environ), output_forwarding.COPY_VARIABLE: os.fspath(copy)},
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in safe),
                (os.POSIX_SPAWN_OPEN, 0, output_forwarding.__file__, os.O_RDONLY, 0),
            ],
        )
    finally:
        for ours, _ in safe:
            os.close(ours)
    if os.waitpid(starter, 0)[1]:
        raise OSError(0, "the process that forwards the output did not start")


def _without_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables by which a process is found to be a rank."""
    return {name: value for name, value in environment.items() if name not in VARIABLES}


def _position(descriptor: int) -> int:
    """Returns the offset at which the next byte is written."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND:
        return os.fstat(descriptor).st_size
    return os.lseek(descriptor, 0, os.SEEK_CUR)


def _ask(link: Link, question: bytes) -> None:
    with contextlib.suppress(OSError):  # it is gone; the next read reports that
        link.control.send(question)


def _readable(descriptors: list[int]) -> set[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(_POLL_MS)}
