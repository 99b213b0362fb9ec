"""The channel to the agent of `preflight` on one host: a question, an answer."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from mgpu_probes.outside.node.channel_frames import BadStream, FrameSplitter
from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.cluster import agent_program
from mgpu_doctor.cluster.engine import Engine, Trouble, not_understood, start_agent

SECONDS_TO_ANSWER = 30.0
"""Until the agent greets: connecting gives up after ten."""
MOST_ERROR = 4096
Json = dict[str, Any]


class ThisMachine:
    """An engine whose only host is this machine, by whatever name."""

    name = "sh"

    def command(self, host: str, remote: str) -> list[str]:  # noqa: ARG002
        path = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"
        return ["env", f"PATH={path}", "/bin/sh", "-c", remote]

    def describe_trial(self, host: str) -> str:
        del host
        return "/bin/sh -c true"

    def explain(self, host: str, code: int, text: str) -> Trouble:
        del host
        return Trouble(f"its tests ended with {code}: {text.strip()[-200:]}", "report it")


class HostLost(Exception):  # noqa: N818 - says what happened
    """The host does not answer, or not any more."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.reason)
        self.trouble = trouble


class PreflightChannel:
    """The agent on `host`. `options`: its first line. `ask` may be called from any one thread at a
    time."""

    def __init__(self, host: str, engine: Engine, options: Mapping[str, Any]) -> None:
        self.host = host
        self._engine = engine
        self._error = b""
        self._number = 0
        self._frames: queue.Queue[tuple[Json, Json] | None] = queue.Queue()
        self._bad: str | None = None
        first = json.dumps(options).encode() + b"\n"
        started = start_agent(engine, host)
        if isinstance(started, Trouble):
            raise HostLost(started)
        self._child = started
        for read in (self._read, self._read_error):
            threading.Thread(target=read, daemon=True).start()
        program = agent_program.program(agent_program.PREFLIGHT_AGENT)
        threading.Thread(target=self._write, args=(program + first,), daemon=True).start()

    def greet(self) -> Json:
        """What the agent says about its host. Raises HostLost."""
        return self._await("hello", None, SECONDS_TO_ANSWER)

    def ask(self, test: str, seconds: float, **given: Any) -> Json:
        """The answer to a request, within `seconds`. Raises HostLost."""
        self._number += 1
        line = json.dumps({"test": test, "number": self._number, **given}).encode() + b"\n"
        self._write(line)
        return self._await("result", self._number, seconds)

    def close(self) -> None:
        """Ends the agent and the child process."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        try:
            self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _await(self, kind: str, number: int | None, seconds: float) -> Json:
        end = time.monotonic() + seconds
        while True:
            try:
                frame = self._frames.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                reason = f"it did not answer within {seconds:.0f} s"
                raise HostLost(Trouble(reason, "check the network and the host")) from None
            if frame is None:
                self._frames.put(None)
                raise HostLost(self._explain())
            head, body = frame
            if head.get("kind") == kind and (number is None or head.get("number") == number):
                return body

    def _explain(self) -> Trouble:
        if self._bad is not None:
            return not_understood(self._engine, self.host, self._bad)
        try:
            code = self._child.wait(2.0)
        except subprocess.TimeoutExpired:
            return Trouble("it closed the connection", "check the network and the host")
        text = clean(self._error.decode("utf-8", "replace"), MOST_ERROR)
        return self._engine.explain(self.host, code, text)

    def _write(self, data: bytes) -> None:
        """Writes all of it. A broken pipe shows itself where the child is read."""
        assert self._child.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._child.stdin.write(view) or 0 :]
        except (OSError, ValueError):
            return

    def _read(self) -> None:
        assert self._child.stdout is not None
        splitter = FrameSplitter()
        try:
            while data := self._child.stdout.read(1 << 16):
                for frame in splitter.feed(data):
                    self._frames.put((_object(frame.head), _object(frame.body)))
        except (BadStream, ValueError, RecursionError) as error:
            self._bad = str(error)
        self._frames.put(None)

    def _read_error(self) -> None:
        assert self._child.stderr is not None
        while data := self._child.stderr.read(1 << 12):
            self._error = (self._error + data)[-MOST_ERROR:]


def _object(body: bytes) -> Json:
    content = json.loads(body)
    if not isinstance(content, dict):
        raise BadStream("it answers with no object")
    return content
