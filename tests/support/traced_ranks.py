"""Pretend ranks with real sockets that answer requests for traces like the probe."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

STATE = {"rank": 0, "told": 40, "state": "idle", "why": None, "steps": 0}


class TracedRank:
    """Answers like our probe; `ends` is what its trace comes to."""

    def __init__(self, box: Path, ends: Mapping[str, object]) -> None:
        self.path = str(box.with_suffix(".sock"))
        self.asked: list[str] = []
        self._ends = ends
        self._box = box
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        self._state: dict[str, object] = dict(STATE)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            client, _ = self._server.accept()
            with client:
                handler = client.recv(4096).split()[1].decode().rpartition("/")[2]
                if handler == "bye":
                    return
                self.asked.append(handler)
                if handler == "trace_cancel":
                    self._box.with_suffix(".trace.json").unlink(missing_ok=True)
                if handler.startswith("trace_begin"):
                    self._state |= self._ends
                    if self._ends["state"] == "done":
                        self._box.with_suffix(".trace.json").write_text("{}")
                client.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(self._state).encode())

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(self.path)
            last.sendall(b"POST /bye HTTP/1.1\r\n")
        self.thread.join()
        self._server.close()
