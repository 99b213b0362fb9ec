"""A stand-in for torch's worker server: it answers one request per connection as the test wants."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """As torch's server writes it."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: text/plain\r\n\r\n"
    return head.encode() + body


@contextmanager
def worker_server(path: str, reply: bytes, *, drips: bool = False) -> Iterator[list[str]]:
    """Serves on the socket; gives the first lines of the requests that came. With `drips` the
    reply comes a byte at a time and never ends."""
    requests: list[str] = []
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        while not over.is_set():
            try:
                asked, _ = listener.accept()
            except OSError:
                return
            with asked:
                requests.append(asked.recv(65_536).decode().partition("\r\n")[0])
                _send(asked, reply, over if drips else None)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield requests
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.unlink(path)


def _send(asked: socket.socket, reply: bytes, over: threading.Event | None) -> None:
    try:
        asked.sendall(reply)
        while over is not None and not over.wait(0.01):
            asked.sendall(b".")
    except OSError:
        return  # who asked has gone
