"""Several hosts at once: one thread reads all their channels into recordings of their jobs."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from types import TracebackType

from mgpu_doctor.cluster.agent_command import AgentCommand, StepCommand
from mgpu_doctor.cluster.agent_messages import Hello, JobFacts
from mgpu_doctor.cluster.engine import Engine, StepEngine, Trouble, start_agent, start_step
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_channel import HostChannel, HostState, Link
from mgpu_doctor.cluster.host_mirror import HostMirror, HostRefused, JobKey
from mgpu_doctor.recording.open_files import allow_open_files

NOTE_EVERY = 1.0
JUMPED = 5.0
"""Seconds between two polls from which this process was stopped meanwhile, or the machine slept."""
MOST_OPENING = 32
"""Commands that connect at the same time. A choice: starting them takes cores here, and a jump host
refuses some of more than 10 at once, which are tried again (MaxStartups in sshd_config)."""
DESCRIPTORS = 3
"""Of each command."""
OTHER_FILES = 256
"""Descriptors that are left for everything else."""
TEND_EVERY = 0.1
"""Seconds between two passes over all hosts."""


class Fleet:
    """The hosts, and the jobs found on them. For one thread; `states`, `jobs` and the recordings
    may be read from any. `every`: seconds between the polls of an agent. `joint`: the key of the
    only job that is wanted; `begin_job`: makes the recording of a job, or raises HostRefused."""

    def __init__(
        self,
        hosts: Sequence[str],
        engine: Engine,
        every: float = 1.0,
        *,
        joint: str | None = None,
        begin_job: Callable[[JobFacts, str], GatheredJob] = GatheredJob,
    ) -> None:
        self._jobs: dict[JobKey, GatheredJob] = {}
        self._begin_job = begin_job
        self._channels = [
            HostChannel(host, engine, HostMirror(self._find_job, self._admit, joint=joint), every)
            for host in dict.fromkeys(hosts)
        ]
        if not isinstance(engine, StepEngine):
            allow_open_files(DESCRIPTORS * len(self._channels) + OTHER_FILES)
        self._engine = engine
        self._commands: list[AgentCommand] = []
        self._polled = self._noted = time.monotonic()
        self._tend_due = 0.0
        self._has_steps = False

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def channels(self) -> tuple[HostChannel, ...]:
        """Of all hosts, in the order in which they were named."""
        return tuple(self._channels)

    @property
    def jobs(self) -> tuple[GatheredJob, ...]:
        """The jobs whose black boxes were found, in the order in which they were."""
        return tuple(self._jobs.values())

    @property
    def unrecorded(self) -> tuple[tuple[str, JobFacts], ...]:
        """Jobs without any black box, each with its host's name."""
        return tuple(
            (channel.host, facts)
            for channel in self._channels
            for facts in channel.mirror.jobs
            if not facts.boxes and not facts.over
        )

    def states(self) -> tuple[HostState, ...]:
        """The hosts, in the order in which they were named."""
        return tuple(channel.state() for channel in self._channels)

    def wait_until_read(self, seconds: float) -> None:
        """Polls until every host has sent what it has, or has failed. `seconds`: at most; twice as
        long if a step is tried again because one of its hosts prevented it."""
        began = time.monotonic()
        while time.monotonic() - began < seconds * (1 + self._has_steps):
            self.poll(0.1)
            if all(channel.is_settled for channel in self._channels):
                break
        self._note_hosts()

    def take_snapshot(
        self, job: GatheredJob, seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """Takes a snapshot of a job's processes into its recording, stacks included; whether it
        could. `seconds`: how long to wait for it, at most; `is_over`: whether to wait no more."""
        end = time.monotonic() + seconds
        asked = sum(channel.ask_for_stacks(job) for channel in self._channels)
        while len(job.snapshots) < asked and time.monotonic() < end and not is_over():
            self.poll(0.1)
        return job.join_snapshots()

    def poll(self, seconds: float) -> None:
        """Takes in what arrives; waits at most so many seconds for it."""
        self._tend()
        waiting = select.poll()
        calls: dict[int, Callable[[], None]] = {}
        for command in self._commands:
            for descriptor, events, call in command.awaited():
                waiting.register(descriptor, events)
                calls[descriptor] = call
        for descriptor, _ in waiting.poll(1000 * seconds):
            calls[descriptor]()
        if time.monotonic() >= self._noted + NOTE_EVERY:
            self._note_hosts()

    def close(self) -> None:
        """Ends all channels, and with them the agents."""
        with suppress(OSError):  # the disk may be full
            self._note_hosts()
        for command in self._commands:
            command.hang_up()
        for command in self._commands:
            command.close()

    def _note_hosts(self) -> None:
        """Writes into the recordings which hosts were asked. Those that still connect are left out:
        they may run the ranks that seem to be missing."""
        self._noted = time.monotonic()
        channels = (channel for channel in self._channels if channel.link is not Link.OPENING)
        asked = tuple(channel.asked for channel in channels)
        for job in self._jobs.values():
            job.note_hosts(asked)

    def _tend(self) -> None:
        """Does what time brings: gives up silent hosts, opens channels that are due."""
        now = time.monotonic()
        passed, self._polled = now - self._polled, now
        if now < self._tend_due:
            return
        self._tend_due = now + TEND_EVERY
        for channel in self._channels:
            channel.tend(passed if passed >= JUMPED else 0.0)
        self._commands = [command for command in self._commands if command.child is not None]
        for command in self._commands:
            command.tend()
        due = [channel for channel in self._channels if channel.is_due()]
        opening = sum(not command.is_heard for command in self._commands)
        if not isinstance(self._engine, StepEngine) or len(due) <= self._engine.most_alone:
            first = sorted(due, key=_failures)[: max(0, MOST_OPENING - opening)]
            for channel in first:
                self._open_alone(channel)
            return
        self._has_steps = True
        for group in list(self._group(due))[: max(0, self._engine.most_alone - opening)]:
            self._open_step(self._engine, group)

    def _group(self, due: Sequence[HostChannel]) -> Iterator[list[HostChannel]]:
        """Yields hosts that one command reaches: at first all, then, because a single bad host may
        prevent it, half as many after each failure."""
        for failures, same in groupby(sorted(due, key=_failures), key=_failures):
            group, size = list(same), max(1, len(self._channels) >> failures)
            yield from (group[at : at + size] for at in range(0, len(group), size))

    def _open_alone(self, channel: HostChannel) -> None:
        child = start_agent(self._engine, channel.host)
        if isinstance(child, Trouble):
            channel.fail(child, time.monotonic())
            return
        channel.command = AgentCommand(self._engine, [channel], child)
        self._commands.append(channel.command)

    def _open_step(self, engine: StepEngine, channels: Sequence[HostChannel]) -> None:
        if len(channels) == 1:
            self._open_alone(channels[0])
            return
        child = start_step(engine, [channel.host for channel in channels])
        if isinstance(child, Trouble):
            for channel in channels:
                channel.fail(child, time.monotonic())
            return
        step = StepCommand(engine, channels, child)
        self._commands.append(step)
        for channel in channels:
            channel.command = step

    def _admit(self, hello: Hello) -> None:
        """Refuses a host that has the name of another one: ranks are told apart by it."""
        for channel in self._channels:
            known = channel.mirror.hello
            if known is None or known.host != hello.host:
                continue
            if known.boot is not None and known.boot == hello.boot:
                raise HostRefused(Trouble(f"it is the same host as {channel.host}", "name it once"))
            reason = f"it calls itself {hello.host}, as {channel.host} does"
            raise HostRefused(Trouble(reason, "give each host a name of its own"))

    def _find_job(self, key: JobKey, facts: JobFacts, host: str) -> GatheredJob:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._begin_job(facts, host)
        return job


def _failures(channel: HostChannel) -> int:
    return channel.failures
