"""A rank that tells of itself when somebody asks: where it stands, and what torch recorded.

It listens on a unix socket beside its black box, which only the same user can reach. That needs no
right to trace the process. Requests and answers are those of torch's own worker server, so that one
client serves both; that one is not used, as it writes to the job's standard error.

The thread is unknown to `threading`, asleep until it is asked, and answers unless code in C holds
Python's lock.
"""

from __future__ import annotations

import _thread
import atexit
import faulthandler
import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

_LONGEST = 4096
_PATIENCE = 2.0
"""Seconds for who asks to say what."""
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid, gid: unix(7), SO_PEERCRED."""


def stacks() -> bytes:
    """All threads' stacks, written to memory first: while faulthandler writes, it holds Python's
    lock, and whoever asks may read slowly."""
    memory = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(memory, all_threads=True)
        return os.pread(memory, os.fstat(memory).st_size, 0)
    finally:
        os.close(memory)


handlers: dict[str, Callable[[], bytes]] = {"ping": lambda: b"pong", "dump_traceback": stacks}
commands: dict[str, Callable[[Mapping[str, int]], bytes]] = {}
"""Those that are given numbers, as in `trace_begin?steps=10`."""


def listen(box: str) -> str | None:
    """Answers from now on until the process ends; the socket's path. None: not possible here.

    `box`: path of the process's black box."""
    folder, name = os.path.split(box)
    name = f"{name.rpartition('.')[0]}.sock"
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # The path of a socket has 107 bytes at most; through the open folder any fits.
            server.bind(f"/proc/self/fd/{place}/{name}")
            os.chmod(name, 0o600, dir_fd=place)
            server.listen(4)
        except OSError:
            server.close()
            return None
    finally:
        os.close(place)
    path = os.path.join(folder, name)
    atexit.register(_remove, path, os.getpid())
    _thread.start_new_thread(_serve, (server,))
    return path


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(OSError):
            os.unlink(path)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            asked, _ = server.accept()
        except OSError:
            return  # the process ends
        # Whatever goes wrong with an answer, nobody but who asked may notice: an exception that
        # leaves a thread is printed to the job's standard error.
        with asked, suppress(Exception):
            _answer(asked)


def _answer(asked: socket.socket) -> None:
    asked.settimeout(_PATIENCE)
    said = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(said)[1] not in (os.geteuid(), 0):
        return
    request = asked.recv(_LONGEST).split(b"\r\n", 1)[0].split()
    if len(request) != 3:
        return
    path, _, query = request[1].decode("ascii", "replace").partition("?")
    name = path.rpartition("/")[2]
    handler = handlers.get(name)
    if name in commands:
        handler = partial(commands[name], _numbers(query))
    if handler is None:
        asked.sendall(b"HTTP/1.0 404 Not Found\r\n\r\nno such handler")
        return
    body = handler()
    asked.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    asked.sendall(body)


def _numbers(query: str) -> dict[str, int]:
    pairs = (one.partition("=") for one in query.split("&"))
    return {name: int(value) for name, _, value in pairs if value.isdecimal() and len(value) < 19}
