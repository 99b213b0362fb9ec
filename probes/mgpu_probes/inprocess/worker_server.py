"""A rank that answers questions about itself: its stacks, and what torch recorded.

It listens on a unix socket beside its black box, which only the same user can reach. That needs no
right to trace the process. Requests and answers are those of torch's own worker server, so that one
client serves both; that one is not used, as it writes to the job's standard error.

The thread is unknown to `threading`, sleeps until somebody asks, and answers unless code in C holds
Python's lock. No signal is ever delivered in it, and none is raised by a client that has gone.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from . import masked_threads

_LONGEST = 4096
_PATIENCE = 2.0
"""Seconds for a client to send its request."""
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid, gid: unix(7), SO_PEERCRED."""
_open: list[socket.socket] = []
"""The sockets that listen, and the connection that is being answered. A forked child closes them: a
client of a rank that died must not wait for a child of it that lives on."""


def stacks() -> bytes:
    """All threads' stacks, written to memory first: while faulthandler writes, it holds Python's
    lock, and the client may read slowly."""
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
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        server = _bound(place, name)
    finally:
        os.close(place)
    if server is None:
        return None
    _open.append(server)
    path = os.path.join(folder, name)
    atexit.register(_remove, path, os.getpid())
    masked_threads.start(_serve, server)
    return path


def _bound(folder: int, name: str) -> socket.socket | None:
    """A socket that listens as `name` in a private folder; None: not possible."""
    if not _is_private(os.fstat(folder)):
        return None
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Linux gives the file of a socket the socket's own mode, less the umask. So nobody else
        # can connect at any moment, and the umask, which all threads share, stays as it is.
        os.fchmod(server.fileno(), 0o600)
        # The path of a socket has 107 bytes at most; through the open folder any fits.
        server.bind(f"/proc/self/fd/{folder}/{name}")
        if _is_private(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            server.listen(4)
            return server
    except OSError:
        pass
    server.close()
    return None


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:
        with suppress(OSError):
            os.unlink(path)


def _close_in_child() -> None:
    for open_socket in _open:
        with suppress(OSError):
            open_socket.close()
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return  # the process ends
        _open.append(client)
        # Whatever goes wrong with an answer, nobody but the client may notice: an exception that
        # leaves a thread is printed to the job's standard error.
        with client, suppress(Exception):
            _answer(client)
        with suppress(ValueError):
            _open.remove(client)


def _answer(client: socket.socket) -> None:
    client.settimeout(_PATIENCE)
    peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(peer)[1] not in (os.geteuid(), 0):
        return
    request = client.recv(_LONGEST).split(b"\r\n", 1)[0].split()
    if len(request) != 3:
        return
    path, _, query = request[1].decode("ascii", "replace").partition("?")
    name = path.rpartition("/")[2]
    handler = handlers.get(name)
    if name in commands:
        handler = partial(commands[name], _numbers(query))
    if handler is None:
        _send(client, b"HTTP/1.0 404 Not Found\r\n\r\nno such handler")
        return
    body = handler()
    _send(client, b"HTTP/1.0 200 OK\r\n\r\n")
    _send(client, body)


def _send(client: socket.socket, data: bytes) -> None:
    """A client that gave up raises an error here, never SIGPIPE: the program may have made that
    deadly again (`signal.signal(SIGPIPE, SIG_DFL)`)."""
    client.sendall(data, socket.MSG_NOSIGNAL)


def _numbers(query: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return {name: int(value) for name, _, value in pairs if value.isdecimal() and len(value) < 19}
