"""A worker of Ray: trains, and prints directly to the output of the process that started the job.

Ray itself would collect what workers print, prefix it with their names and deliver it later.
"""

import importlib
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

STREAMS = (1, 2)


class SharedOutput:
    """Passes the descriptors of this process's standard output and error to clients of the socket
    at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed: the process ends
            while True:
                client, _ = self._server.accept()
                with client:
                    socket.send_fds(client, [b"."], STREAMS)


def take_output(path: str) -> None:
    """Redirects standard output and error, also of C code, to those served at `path`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        _, descriptors, _, _ = socket.recv_fds(client, 1, len(STREAMS))
    for stream, new in zip(STREAMS, descriptors, strict=True):
        os.dup2(new, stream)
        os.close(new)
    sys.stdout, sys.stderr = (
        open(stream, "w", buffering=1, closefd=False)  # noqa: SIM115  # until the process ends
        for stream in STREAMS
    )


def train_in_worker(settings: dict[str, str]) -> None:
    """`module`: its `learn` takes the `options`, one a line; `output`: see `take`."""
    take_output(settings["output"])
    importlib.import_module(settings["module"]).learn(settings["options"].split("\n"))
