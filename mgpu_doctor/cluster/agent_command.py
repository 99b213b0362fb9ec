"""The command through which agents are reached: its child process, for one host or for several.

For one thread. A command ends with its last channel, and its channels end with it.

What goes to several hosts through one command reaches all of them, so requests that are equal are
sent once, with the names of those hosts for which they are, or none if they are for all. A question
to each of 1,250 hosts would otherwise be 1,250 lines for each of them."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from mgpu_probes.outside.node.channel_frames import BadStream
from mgpu_probes.outside.terminal_text import clean

from mgpu_doctor.cluster import agent_program
from mgpu_doctor.cluster.clock_offset import ASK_EVERY
from mgpu_doctor.cluster.engine import Engine, Trouble, not_understood
from mgpu_doctor.cluster.step_output import (
    TASK_END,
    StepOutput,
    TaskBegan,
    TaskEnded,
    TaskText,
    decode_text,
    split_label,
)

SECONDS_TO_END = 2.0
MOST_ERROR = 4096
"""Bytes of standard error that are kept, its end."""
READ = 1 << 18
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
Json = dict[str, Any]


class Channel(Protocol):
    """What a command knows of the channel to a host."""

    host: str

    def make_request(self) -> Json:
        """The first request for a new agent."""
        ...

    def note_question(self, at: float) -> None:
        """The agent is asked for its clock. `at`: this machine's clock."""
        ...

    def take_in(self, data: bytes) -> None:
        """Takes in what the agent printed."""
        ...

    def fail(self, trouble: Trouble, now: float, *, is_cause: bool | None = True) -> None:
        """The channel has ended. `is_cause`: whether because of this host; None: unknown."""
        ...


class AgentCommand:
    """A started command, which reaches the agent of one host. `clock`: monotonic seconds."""

    def __init__(
        self,
        engine: Engine,
        channels: Sequence[Channel],
        child: subprocess.Popen[bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.child: subprocess.Popen[bytes] | None = child
        self.is_heard = False
        """Whether an agent has sent anything."""
        self._channels = list(channels)
        self._engine = engine
        self._clock = clock
        self._error = b""
        self._error_over = False
        self._question_due = clock() + ASK_EVERY
        self._outgoing = bytearray(agent_program.program())
        self._begin()
        for stream in (child.stdin, child.stdout, child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def awaited(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        """Yields what the command waits for: a descriptor, events of `select.poll`, and what to
        call when they come. Calls after the command has ended do nothing."""
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

    def tend(self) -> None:
        """Asks all agents now and then for their clocks, which shows them also that somebody
        listens."""
        if self._clock() >= self._question_due and not self._outgoing:
            self._question_due = self._clock() + ASK_EVERY
            self._ask_for_clocks(self._channels)

    def ask_for_clock(self, channel: Channel) -> None:
        """Asks the agent of one host for its clock."""
        self._ask_for_clocks([channel])

    def _ask_for_clocks(self, channels: Iterable[Channel]) -> None:
        now = time.time()
        for channel in channels:
            channel.note_question(now)
            self.ask(channel, {"clock": now})

    def ask(self, channel: Channel, request: Json) -> None:
        """Sends a request to the agent of one host."""
        del channel
        self._say(request)

    def drop(self, channel: Channel) -> None:
        """Ends the agent of one host."""
        del channel
        self.close()

    def hang_up(self) -> None:
        """Closes the child's input; the agents end by themselves."""
        if self.child is not None and self.child.stdin is not None:
            self.child.stdin.close()

    def close(self) -> None:
        """Ends the child, and with it the agents."""
        if self.child is not None:
            self._stop()

    def _begin(self) -> None:
        """Sends the first requests."""
        for channel in self._channels:
            self.ask(channel, channel.make_request())

    def _say(self, request: Json) -> None:
        self._outgoing += json.dumps(request, separators=(",", ":")).encode() + b"\n"

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
        """Hands over what agents sent; ends all channels if there is no more."""
        if self.child is None or self.child.stdout is None:
            return
        data = _read(self.child.stdout.fileno())
        if data:
            self._split(data)
        elif data is not None:
            self._end()

    def _split(self, data: bytes) -> None:
        """Hands what was read over to the channels."""
        self.is_heard = True
        self._channels[0].take_in(data)

    def _take_error(self) -> None:
        """Keeps the end of what the child prints on standard error."""
        if self.child is None or self.child.stderr is None:
            return
        data = _read(self.child.stderr.fileno())
        self._error_over = data == b""
        self._keep_error(data or b"")

    def _keep_error(self, data: bytes) -> None:
        self._error = (self._error + data)[-MOST_ERROR:]

    def _end(self, reason: str | None = None) -> None:
        """Ends a command that broke. `reason`: it is nonsense that it prints; else the engine knows
        why it ended."""
        self._take_error()
        code = self._stop()
        now = self._clock()
        error = _text(self._error)
        words = frozenset(_WORD.findall(error))
        named = [channel for channel in self._channels if channel.host in words]
        alone = len(self._channels) == 1
        for channel in self._channels:
            trouble = (
                not_understood(self._engine, channel.host, reason)
                if reason
                else self._engine.explain(channel.host, code, error)
            )
            channel.fail(trouble, now, is_cause=channel in named if named else alone or None)

    def _stop(self) -> int:
        """Ends the child process; its exit code."""
        child, self.child = self.child, None
        assert child is not None
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()  # the agents end with their channels
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


class StepCommand(AgentCommand):
    """A started command that reaches the agents of several hosts at once (`step_output`)."""

    def _begin(self) -> None:
        self._output = StepOutput()
        self._by_node = {channel.host: channel for channel in self._channels}
        """Node -> channel, of tasks that have not begun."""
        self._by_task: dict[int, Channel] = {}
        self._waiting: dict[str, tuple[Json, set[str]]] = {}
        """Requests, by their texts, and the hosts for which they are."""
        self._unasked: dict[Channel, None] = {}
        """Channels whose agents are to be asked for their clocks."""
        self._errors: dict[int, bytes] = {}
        super()._begin()

    def tend(self) -> None:
        super().tend()
        unasked, self._unasked = self._unasked, {}
        self._ask_for_clocks(unasked)

    def awaited(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        waiting, self._waiting = self._waiting, {}
        all_hosts = {channel.host for channel in self._channels}
        for request, hosts in waiting.values():
            self._say(request if hosts == all_hosts else {"agent": sorted(hosts), **request})
        return super().awaited()

    def ask(self, channel: Channel, request: Json) -> None:
        """Sends a request to the agent of one host, at the next `awaited`."""
        _, hosts = self._waiting.setdefault(json.dumps(request), (request, set()))
        hosts.add(channel.host)

    def ask_for_clock(self, channel: Channel) -> None:
        self._unasked[channel] = None

    def drop(self, channel: Channel) -> None:
        if self.child is None or channel not in self._channels:
            return
        self._forget(channel)
        self.ask(channel, {"end": True})
        if not self._channels:
            self.close()

    def _split(self, data: bytes) -> None:
        texts: dict[int, list[bytes]] = {}
        try:
            for part in self._output.feed(data):
                match part:
                    case TaskText(task, text):
                        texts.setdefault(task, []).append(text)
                    case TaskBegan(task, node):
                        channel = self._by_node.pop(node, None)
                        if channel is not None and task not in self._by_task:
                            self._by_task[task] = channel
                    case TaskEnded(task, code):
                        self._hand_over(task, texts.pop(task, []))
                        self._end_task(task, code)
        except BadStream as error:
            self._end(str(error))
            return
        for task, parts in texts.items():
            self._hand_over(task, parts)

    def _hand_over(self, task: int, texts: list[bytes]) -> None:
        channel = self._by_task.get(task)
        if channel is None:
            return
        try:
            data = b"".join(map(decode_text, texts))
        except BadStream as error:
            self.drop(channel)
            channel.fail(not_understood(self._engine, channel.host, str(error)), self._clock())
            return
        self.is_heard = True
        channel.take_in(data)

    def _end_task(self, task: int, code: int) -> None:
        """The agent of one host has ended; the step goes on without it."""
        channel = self._by_task.get(task)
        if channel is None:
            return
        self._take_error()
        self._forget(channel)
        text = _text(self._errors.get(task, b""))
        channel.fail(self._engine.explain(channel.host, code, text), self._clock())
        if not self._channels:
            self.close()

    def _forget(self, channel: Channel) -> None:
        self._channels.remove(channel)
        self._by_node.pop(channel.host, None)
        self._by_task = {task: one for task, one in self._by_task.items() if one is not channel}

    def _keep_error(self, data: bytes) -> None:
        """Tells the lines of tasks from those of the command itself."""
        for line in data.splitlines(keepends=True):
            task, text = split_label(line)
            if task is None and TASK_END.search(text) is None:
                super()._keep_error(text)
            elif task in self._by_task:
                self._errors[task] = (self._errors.get(task, b"") + text)[-MOST_ERROR:]


def _text(error: bytes) -> str:
    return clean(error.decode("utf-8", "replace"), MOST_ERROR)


def _read(descriptor: int) -> bytes | None:
    """What can be read now; None: nothing yet; empty: the end."""
    try:
        return os.read(descriptor, READ)
    except BlockingIOError:
        return None
    except OSError:
        return b""
