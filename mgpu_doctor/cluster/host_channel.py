"""The channel to one host: its child process, what it sends, and why it ended.

For one thread, which waits for many of them (`Fleet`). A channel that broke is opened again, and
continues after what has arrived."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mgpu_probes.outside.node.channel_frames import BadStream, FrameSplitter
from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.cluster import agent_program
from mgpu_doctor.cluster.engine import Engine, Trouble, not_understood, start_agent
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_mirror import HostMirror, HostRefused

SILENCE = 60.0
"""Seconds without a message after which a channel counts as broken."""
PING_EVERY = 20.0
FIRST_RETRY, LAST_RETRY = 1.0, 30.0
"""Seconds until a channel is opened again; twice as long after each failure."""
SECONDS_TO_END = 2.0
MOST_ERROR = 4096
"""Bytes of standard error that are kept, its end."""
READ = 1 << 16


class Link(Enum):
    """How well a host can be seen."""

    OPENING = "opening"
    """It is being connected to for the first time, or sends what it has."""
    LIVE = "live"
    BROKEN = "broken"
    """It could not be connected to, or broke; it is tried again."""


@dataclass(frozen=True, slots=True)
class HostState:
    """A host as the user named it. `node`: its own name; None: it never answered. `age`: seconds
    since it was last heard; None: never. `trouble`: why the channel is broken. `lost`: records of
    boxes that were overwritten before they arrived. `ahead`: seconds by which its clock is ahead of
    this machine's; 0 if that does not matter. `refused`: why some of its boxes cannot be read."""

    name: str
    node: str | None
    link: Link
    age: float | None
    trouble: Trouble | None
    lost: int
    ahead: float
    refused: tuple[str, ...] = ()


class HostChannel:
    """The channel to `host`. `every`: seconds between the agent's polls."""

    def __init__(
        self,
        host: str,
        engine: Engine,
        mirror: HostMirror,
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self.mirror = mirror
        self.child: subprocess.Popen[bytes] | None = None
        self._engine = engine
        self._every = every
        self._clock = clock
        self._splitter = FrameSplitter()
        self._outgoing = bytearray()
        self._error = b""
        self._error_over = False
        self._failures = 0
        """Channels in a row that broke before all was there."""
        self._trouble: Trouble | None = None
        self._heard: float | None = None
        self._quiet_since = clock()
        self._ping_due = 0.0
        self._open_due = 0.0

    def state(self) -> HostState:
        hello = self.mirror.hello
        link = Link.OPENING if self._trouble is None else Link.BROKEN
        if self.mirror.synced:
            link = Link.LIVE
        return HostState(
            name=self.host,
            node=hello.host if hello else None,
            link=link,
            age=None if self._heard is None else max(0.0, self._clock() - self._heard),
            trouble=self._trouble,
            lost=self.mirror.lost,
            ahead=self.mirror.ahead,
            refused=tuple(self.mirror.refused.values()),
        )

    def open_if_due(self) -> None:
        """Starts the child process if there is none and it is time."""
        if self.child is not None or self._clock() < self._open_due:
            return
        started = start_agent(self._engine, self.host)
        if isinstance(started, Trouble):
            self._fail(started)
            return
        self.child = started
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._splitter, self._error, self._error_over = FrameSplitter(), b"", False
        self._outgoing[:] = agent_program.program() + self.mirror.make_request(self._every)
        self._quiet_since = self._clock()
        self._ping_due = self._quiet_since + PING_EVERY

    def awaited(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """Yields what the channel waits for: a descriptor, events of `select.poll`, and what to
        call when they come. Calls after the channel has ended do nothing."""
        if self.child is None:
            return
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        assert self.child.stderr is not None
        yield self.child.stdout.fileno(), select.POLLIN, self._take_in
        if not self._error_over:
            yield self.child.stderr.fileno(), select.POLLIN, self._take_error
        if self._outgoing:
            yield self.child.stdin.fileno(), select.POLLOUT, self._send

    def _send(self) -> None:
        """Writes as much as the child takes. A broken pipe shows itself where the child is read."""
        if self.child is None or self.child.stdin is None:
            return
        try:
            written = os.write(self.child.stdin.fileno(), self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            written = len(self._outgoing)
        del self._outgoing[:written]

    def _take_in(self) -> None:
        """Takes in what the agent sent; ends the channel where there is no more, or nonsense."""
        if self.child is None or self.child.stdout is None:
            return
        data = _read(self.child.stdout.fileno())
        if data is None:
            return
        if not data:
            self._end()
            return
        try:
            for frame in self._splitter.feed(data):
                self.mirror.receive(frame)
        except BadStream as error:
            self._end(not_understood(self._engine, self.host, str(error)))
            return
        except HostRefused as error:
            self._end(error.trouble)
            self._open_due = float("inf")
            return
        except OSError as error:
            reason = f"its recording cannot be written here: {error.strerror or error}"
            self._end(Trouble(reason, "make room, or choose another place with MGPU_DOCTOR_HOME"))
            return
        if self._splitter.began:
            self._heard = self._quiet_since = self._clock()
        if self.mirror.synced:
            self._failures, self._trouble = 0, None

    def _take_error(self) -> None:
        """Keeps the end of what the child prints on standard error."""
        if self.child is None or self.child.stderr is None:
            return
        data = _read(self.child.stderr.fileno())
        self._error_over = data == b""
        self._error = (self._error + (data or b""))[-MOST_ERROR:]

    def tend(self, jump: float) -> None:
        """What time brings: shows the agent that somebody listens, gives up a silent one. `jump`:
        seconds in which this process itself did not run, so that it could not hear."""
        if self.child is None:
            return
        now = self._clock()
        self._quiet_since += jump
        if now - self._quiet_since >= SILENCE:
            reason = f"it has been silent for {SILENCE:.0f} s"
            self._end(Trouble(reason, "check the network and the host"))
        elif now >= self._ping_due and not self._outgoing:
            self._ping_due = now + PING_EVERY
            self.send({})

    def ask_for_stacks(self, job: GatheredJob) -> bool:
        """Asks the agent for a snapshot of a job; whether it is there and has that job."""
        number = self.mirror.number_of(job)
        if number is None or not self.mirror.synced:
            return False
        self.send({"stacks": number})
        return True

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request to the agent."""
        self._outgoing += json.dumps(request).encode() + b"\n"

    def hang_up(self) -> None:
        """Closes the child's input; the agent ends by itself."""
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.close()

    def close(self) -> None:
        """Ends the child, and with it the agent."""
        if self.child is not None:
            self._stop()

    def _end(self, trouble: Trouble | None = None) -> None:
        """Ends a channel that broke; the engine knows why if this class does not."""
        self._take_error()
        code = self._stop()
        text = clean(self._error.decode("utf-8", "replace"), MOST_ERROR)
        self._fail(trouble or self._engine.explain(self.host, code, text))

    def _fail(self, trouble: Trouble) -> None:
        self.mirror.synced = False
        self._trouble = trouble
        self._open_due = self._clock() + min(LAST_RETRY, FIRST_RETRY * 2**self._failures)
        self._failures += 1

    def _stop(self) -> int:
        """Ends the child process; its exit code."""
        child, self.child = self.child, None
        assert child is not None
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()  # the agent ends with its channel
        try:
            code = child.wait(0.2)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                code = child.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                child.kill()
                code = child.wait()
        if child.stderr is not None:
            child.stderr.close()
        return code


def _read(descriptor: int) -> bytes | None:
    """What can be read now; None: nothing yet; empty: the end."""
    try:
        return os.read(descriptor, READ)
    except BlockingIOError:
        return None
    except OSError:
        return b""
