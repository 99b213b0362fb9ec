"""The channel to one host: what its agent sends, and why it ended.

A channel that broke is opened again, and continues after what has arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mgpu_probes.outside.node.channel_frames import BadStream, FrameSplitter

from mgpu_doctor.case.model import AskedHost
from mgpu_doctor.cluster.agent_command import AgentCommand
from mgpu_doctor.cluster.engine import Engine, Trouble, not_understood
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_mirror import HostMirror, HostRefused

SILENCE = 60.0
"""Seconds without a message after which a channel counts as broken."""
FIRST_RETRY, LAST_RETRY = 1.0, 30.0
"""Seconds until a channel is opened again; twice as long after each failure."""


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
    this machine's, at most `clock_error` more or less; None: it was not asked. `corrected`: seconds
    by which its times were put back. `refused`: why some of its boxes cannot be read."""

    name: str
    node: str | None
    link: Link
    age: float | None
    trouble: Trouble | None
    lost: int
    ahead: float | None
    refused: tuple[str, ...] = ()
    clock_error: float | None = None
    corrected: float = 0.0

    @property
    def asked(self) -> AskedHost:
        """The host as a case describes it."""
        return _describe(self.name, self.node, self.link, self.trouble)


def _describe(name: str, node: str | None, link: Link, trouble: Trouble | None) -> AskedHost:
    if link is Link.LIVE:
        return AskedHost(name, node)
    if trouble is None:
        return AskedHost(name, node, "it has not answered yet")
    return AskedHost(name, node, trouble.reason, trouble.remedy)


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
        self.command: AgentCommand | None = None
        """Through which the agent is reached; None: it is not reached."""
        self.failures = 0
        """Channels in a row that broke before all was there, unless another host was the cause."""
        self._engine = engine
        self._every = every
        self._clock = clock
        self._splitter = FrameSplitter()
        self._trouble: Trouble | None = None
        self._is_cause = False
        """Whether the channel broke because of this host."""
        self._heard: float | None = None
        self._quiet_since = clock()
        self._open_due = 0.0

    @property
    def link(self) -> Link:
        if self.mirror.synced:
            return Link.LIVE
        return Link.OPENING if self._trouble is None else Link.BROKEN

    @property
    def asked(self) -> AskedHost:
        """The host as a case describes it."""
        hello = self.mirror.hello
        return _describe(self.host, hello.host if hello else None, self.link, self._trouble)

    @property
    def is_settled(self) -> bool:
        """Whether it has sent what it has, or is itself the cause that it cannot."""
        return self.mirror.synced or self._is_cause

    def state(self) -> HostState:
        hello = self.mirror.hello
        return HostState(
            name=self.host,
            node=hello.host if hello else None,
            link=self.link,
            age=None if self._heard is None else max(0.0, self._clock() - self._heard),
            trouble=self._trouble,
            lost=self.mirror.lost,
            ahead=self.mirror.offset.ahead,
            clock_error=self.mirror.offset.error,
            corrected=self.mirror.offset.corrected,
            refused=tuple(self.mirror.refused.values()),
        )

    def is_due(self) -> bool:
        """Whether it is time to open the channel."""
        return self.command is None and self._clock() >= self._open_due

    def make_request(self) -> dict[str, Any]:
        """The first request for a new agent, whose stream begins now."""
        self._splitter = FrameSplitter()
        self._quiet_since = self._clock()
        return self.mirror.make_request(self._every)

    def take_in(self, data: bytes) -> None:
        """Takes in what the agent sent; ends the channel if it is nonsense."""
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
            if self.mirror.offset.is_new and self.command is not None:
                self.command.ask_for_clock(self)
        if self.mirror.synced:
            self.failures, self._trouble = 0, None

    def tend(self, jump: float) -> None:
        """Gives up a silent agent. `jump`: seconds in which this process itself did not run, so
        that it could not hear."""
        self._quiet_since += jump
        if self.command is not None and self._clock() - self._quiet_since >= SILENCE:
            reason = f"it has been silent for {SILENCE:.0f} s"
            self._end(Trouble(reason, "check the network and the host"))

    def ask_for_stacks(self, job: GatheredJob) -> bool:
        """Asks the agent for a snapshot of a job; whether it is there and has that job."""
        number = self.mirror.number_of(job)
        if number is None or not self.mirror.synced:
            return False
        self.send({"stacks": number})
        return True

    def note_question(self, at: float) -> None:
        """Takes note that the agent is asked for its clock. `at`: this machine's clock."""
        self.mirror.offset.ask(at)

    def send(self, request: dict[str, Any]) -> None:
        """Sends a request to the agent, if it is reached."""
        if self.command is not None:
            self.command.ask(self, request)

    def fail(self, trouble: Trouble, now: float, *, is_cause: bool | None = True) -> None:
        """Takes note that the channel could not be opened, or has ended. `is_cause`: whether
        because of this host; None: unknown."""
        self.command = None
        self.mirror.synced = False
        self._trouble = trouble
        self._open_due = now + min(LAST_RETRY, FIRST_RETRY * 2**self.failures)
        self.failures += is_cause is not False
        self._is_cause = is_cause is True

    def _end(self, trouble: Trouble) -> None:
        """Ends the agent of this host."""
        if self.command is not None:
            self.command.drop(self)
        self.fail(trouble, self._clock())
