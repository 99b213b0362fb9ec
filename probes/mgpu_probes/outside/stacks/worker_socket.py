"""Queries a rank through the Unix socket of PyTorch's worker server or of the probe's.

PyTorch's server (`torch._C._distributed_c10d._WorkerServer`, torch >= 2.4) answers HTTP in its own
thread. Its C++ handlers (`ping`, `fr_trace_json`) answer even while the GIL is held;
`dump_traceback` needs the GIL. The probe's server (`inprocess/worker_server`) answers the same
queries in Python. Readers of stacks and of flight records use it. It must not connect to another
user's socket.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time

MOST_BYTES = 64 << 20
_PIECE = 1 << 16


class NoHandlerError(OSError):
    """The process answers, but not this question."""


def ask_worker(socket_path: str, handler: str, timeout: float, most: int = MOST_BYTES) -> bytes:
    """The answer of a handler (`ping`, `dump_traceback`, `fr_trace_json`, …). `timeout`: seconds in
    total.

    Raises PermissionError for a socket of another user or in a folder that others may write,
    TimeoutError without an answer in time, NoHandlerError if it knows no such handler, another
    OSError if the query fails.
    """
    if not re.fullmatch(r"[a-z_]{1,64}(\?[\w=&]{1,128})?", handler):
        raise ValueError(f"no handler of a worker server: {handler!r}")
    end = time.monotonic() + timeout
    folder = _private_folder(os.path.dirname(socket_path) or ".")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as server:
            server.settimeout(timeout)
            server.connect(_address(folder, os.path.basename(socket_path)))
            request = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\n"
            request += "Content-Length: 0\r\nConnection: close\r\n\r\n"
            server.sendall(request.encode("ascii"))
            return _body(_receive_all(server, end, most))
    finally:
        os.close(folder)


def _private_folder(path: str) -> int:
    """A descriptor of a folder that only this user can enter. Raises PermissionError otherwise."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        os.close(folder)
        raise PermissionError(f"{path} is not a private folder of this user")
    return folder


def _address(folder: int, name: str) -> str:
    """The socket's path through the open folder, which cannot be swapped and allows any length."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{name} is not a socket of this user")
    return f"/proc/self/fd/{folder}/{name}"


def _receive_all(server: socket.socket, end: float, most: int) -> bytes:
    """The server's whole answer. `end`: the deadline, by the monotonic clock."""
    pieces: list[bytes] = []
    size = 0
    while size <= most:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the worker server did not answer in time")
        server.settimeout(left)
        piece = server.recv(_PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    raise OSError(f"the worker server's answer is longer than {most} bytes")


def _body(answer: bytes) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.partition(b"\r\n")[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise OSError("the process on the socket is not a worker server")
    if words[1] != b"200" or b"transfer-encoding" in head.lower():
        status, reason = words[1].decode("ascii", "replace"), body[:200].decode("utf-8", "replace")
        kind = NoHandlerError if words[1] == b"404" else OSError
        raise kind(f"the worker server answered {status}: {reason}")
    return body
