"""Serves a rank's stacks and torch's recorded collectives over a Unix socket, to the same user
only.

The socket lies beside the black box. Reading stacks this way needs no permission to trace the
process. Requests and answers are those of torch's own worker server, so that one client serves
both; torch's server is not used because it writes to the job's standard error.

The serving thread is unknown to `threading` and sleeps until a request comes. It answers unless C
code holds Python's lock (GIL). It never receives a signal, and a client that disconnects raises
none.
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
"""The listening socket and the connection that is being answered. A forked child closes them:
otherwise a client of a dead rank would wait as long as the child lives."""


def stacks() -> bytes:
    """The stacks of all threads, as faulthandler prints them. They are written to memory first,
    because faulthandler holds the GIL while it writes, and a client may read slowly."""
    memory = os.memfd_create("stacks")
    try:
        faulthandler.dump_traceback(memory, all_threads=True)
        return os.pread(memory, os.fstat(memory).st_size, 0)
    finally:
        os.close(memory)


handlers: dict[str, Callable[[], bytes]] = {"ping": lambda: b"pong", "dump_traceback": stacks}
commands: dict[str, Callable[[Mapping[str, int]], bytes]] = {}
"""Handlers that take numbers from the query, as in `trace_begin?steps=10`."""


def listen(box: str) -> str | None:
    """Serves requests until the process ends. Returns the socket's path; None if that is
    impossible.

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
    """A socket that listens as `name` in `folder`; None if the folder is not private, or on
    errors."""
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
        # Only the client may notice an error: an exception that leaves a thread is printed to the
        # job's standard error.
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
    """Sends data. If the client has disconnected, this raises an error, never SIGPIPE, which kills
    a program that has set `signal.signal(SIGPIPE, SIG_DFL)`."""
    client.sendall(data, socket.MSG_NOSIGNAL)


def _numbers(query: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return {name: int(value) for name, _, value in pairs if value.isdecimal() and len(value) < 19}
