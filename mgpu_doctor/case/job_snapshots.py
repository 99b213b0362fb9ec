"""Snapshots of a job's processes from outside: roles, states and stacks.

From a live job (`mgpu_probes.outside.job_snapshot`) or a line of `looks.jsonl`: both have the same
JSON, which is untrusted until it is parsed here. Times are seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NamedTuple

from msgspec import Meta

from mgpu_doctor.case.lenient_json import Moment, Positive, Whole, line_decoder, reader

Name = Annotated[str, Meta(max_length=64)]
Words = Annotated[str, Meta(max_length=400)]
Many = Meta(max_length=16_384)
"""Most processes or stacks of a host."""


class Role(str, Enum):
    """The role of a process in its job."""

    RANK = "rank"
    LAUNCHER = "launcher"
    LOADER = "loader"
    """A data-loader worker; its parent is the rank that it works for."""
    OTHER = "other"


class Frame(NamedTuple):
    """A tuple for speed: with ten thousand ranks, every frame is hashed and compared."""

    function: Words = "?"
    file: Words = "?"
    line: Whole | None = None


class Loop(NamedTuple):
    """A `for` or `while` loop of a script: its first and its last line, inclusive."""

    file: Words = "?"
    first: Whole = 0
    last: Whole = 0


PIDS = 1 << 22
"""More than the largest pid of Linux (its PID_MAX_LIMIT). In a snapshot of several hosts, pids of
the second host are so much higher, those of the third twice as much, and so on: pids of different
hosts, above all of containers, are often equal."""


def pid_on_host(pid: int) -> int:
    """The pid that a process of a snapshot has on its host."""
    return pid % PIDS


@dataclass(frozen=True, slots=True)
class Thread:
    """The stack of one thread. `frames`: innermost first. None: the source does not show it."""

    id: Whole | None = None
    name: Name | None = None
    main: bool = False
    active: bool | None = None
    """Whether it is on a CPU or ready to run."""
    gil: bool | None = None
    """Whether it holds the GIL."""
    frames: Annotated[tuple[Frame, ...], Meta(max_length=512)] = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """The threads of one process at one moment."""

    pid: int
    at: float
    source: Name = "unknown"
    """`py-spy`, `py-spy --native`, `worker socket`, `faulthandler`."""
    threads: Annotated[tuple[Thread, ...], Meta(max_length=256)] = ()

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.main), None)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job. None: could not be read."""

    pid: int
    parent: Whole | None = None
    role: Role = Role.OTHER
    state: Annotated[str, Meta(max_length=1)] | None = None
    """Of the process, as proc(5): R, S, D (cannot be woken), T (stopped), t (traced), Z (zombie);
    None: it is gone."""
    rank: Whole | None = None
    local_rank: Whole | None = None
    world_size: Positive | None = None
    name: Name | None = None
    command: Annotated[tuple[Words, ...], Meta(max_length=64)] = ()
    start_ticks: Whole | None = None
    cpu_seconds: float | None = None
    """CPU seconds of all its threads since it started."""
    wchan: Name | None = None
    """Kernel function in which its main thread sleeps."""
    syscall: Words | None = None
    """Name of the system call its main thread is in; with its file where known:
    `read /dev/pipe:[1]`."""
    container: Annotated[str, Meta(max_length=128)] | None = None
    user: Name | None = None
    main_cpu_seconds: float | None = None
    """CPU seconds of its main thread."""
    rested: float | None = None
    """Seconds for which its main thread had not run by then, by the scheduler."""
    wait_status: Annotated[int, Meta(ge=0, le=0xFFFF)] | None = None
    """Its exit status as of waitpid(2), if its parent has not read it yet."""
    on_device: bool | None = None
    """Whether it holds an accelerator open."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be seen of a process, why, and how to enable it."""

    pid: Whole | None = None
    source: Name = "unknown"
    reason: Words = ""
    remedy: Words = ""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """All processes of the job at one moment, and the stacks that could be read."""

    at: Moment
    launcher: Name | None = None
    """torchrun, mpirun, srun, accelerate, deepspeed, horovodrun, mp.spawn, python, …"""
    world_size: Positive | None = None
    processes: Annotated[tuple[Process, ...], Many] = ()
    stacks: Annotated[tuple[Stack, ...], Many] = ()
    untold: Annotated[tuple[Unread, ...], Many] = ()
    """What could not be read. The name is its key in looks.jsonl."""
    loops: Annotated[tuple[Loop, ...], Meta(max_length=4096)] = ()
    """Loops of the scripts around the lines of the ranks' stacks; empty: none, or not read."""
    missing: Annotated[tuple[Whole, ...], Many] = ()
    """Ranks that should be on this host and for which there is no process."""
    hosts: Annotated[tuple[Name, ...], Many] = ()
    """The hosts of the job, in the order of their pids (`PIDS`); empty: there is one."""
    apart: bool = False
    """Whether no rank is in a process group (`mgpu_probes.outside.jobs.RunningJob.apart`)."""

    @property
    def ranks(self) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.role is Role.RANK)

    def stack(self, pid: int) -> Stack | None:
        """The newest stack of this process, preferably one without native frames."""
        own = [stack for stack in self.stacks if stack.pid == pid]
        return min(reversed(own), key=lambda stack: "native" in stack.source, default=None)


decode_job_snapshot = line_decoder(JobSnapshot)
"""A line of looks.jsonl; None where it cannot be read or has no time."""
read_job_snapshot = reader(JobSnapshot)
"""The same of parsed JSON."""
