"""An agent's side of its channel: requests come on standard input, frames go to standard output.

The process ends with the channel, whatever its other threads do. So an agent leaves nothing behind,
also if its reader is killed, or takes no more.

If the command that started it reaches several hosts at once, all agents get all requests, and their
outputs are merged line by line: then frames are sent as lines of text."""

from __future__ import annotations

import binascii
import json
import os
import queue
import select
import sys
import threading
import time
from typing import Any

from mgpu_probes.outside.node.channel_frames import LINE_END

Json = dict[str, Any]
AT_ONCE = 1 << 16
LINE = 720
"""Bytes of a line before they become text: srun splits lines of more than 1,024 characters."""


class AgentChannel:
    """Requests of the reader, and frames to it. `silence`: seconds without a word of the reader
    after which the channel counts as broken; `longest`: bytes of a request."""

    def __init__(self, silence: float, longest: int) -> None:
        self.requests: queue.Queue[Json] = queue.Queue()
        self._silence = silence
        self._longest = longest
        self._name = sys.argv[1] if len(sys.argv) > 1 else None
        """What requests call this host, if the channel is one of several hosts."""
        self._waiting = bytearray()
        self._out = os.dup(1)
        os.dup2(2, 1)  # nothing that is printed by accident gets into the stream
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        """Reads lines of JSON, and ends the process with the channel."""
        line = b""
        while select.select([0], [], [], self._silence)[0]:
            data = os.read(0, 1 << 16)
            *lines, line = (line + data).split(b"\n")
            if not data or len(line) > self._longest:
                break
            for text in lines:
                try:
                    request = json.loads(text)
                except ValueError:
                    continue
                if isinstance(request, dict) and self._is_for_this_host(request):
                    request["arrived"] = time.time()
                    if request.get("end"):
                        os._exit(0)
                    self.requests.put(request)
        os._exit(0)

    def _is_for_this_host(self, request: Json) -> bool:
        hosts = request.get("agent")
        return hosts is None or (isinstance(hosts, list) and self._name in hosts)

    def write(self, data: bytes) -> None:
        """Collects what is to be sent: a write for each frame would wake the reader each time."""
        self._waiting += data
        if len(self._waiting) >= AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Sends all of it; a reader that takes no more makes the agent wait, and nobody else."""
        data, self._waiting = bytes(self._waiting), bytearray()
        if not data:
            return
        view = memoryview(data + LINE_END if self._name is None else to_lines(data))
        try:
            while view:
                view = view[os.write(self._out, view) :]
        except OSError:
            os._exit(0)  # the channel has ended


def to_lines(data: bytes) -> bytes:
    """The same as lines of base64."""
    pieces = (data[at : at + LINE] for at in range(0, len(data), LINE))
    return b"".join(map(binascii.b2a_base64, pieces))
