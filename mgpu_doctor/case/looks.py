"""A look at a job's processes from outside: who they are, in what state, where they stand.

Facts only. Times are seconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Role(str, Enum):
    """What a process is in its job."""

    RANK = "rank"
    LAUNCHER = "launcher"
    LOADER = "loader"
    """A data-loader worker; its parent is the rank that it works for."""
    OTHER = "other"


class Frame(NamedTuple):
    """A tuple, because of ten thousand ranks' stacks each frame is hashed and compared."""

    function: str
    file: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Thread:
    """`frames`: innermost first. None: the source does not tell."""

    id: int | None
    name: str | None
    main: bool
    active: bool | None
    """On a CPU, or ready to be."""
    gil: bool | None
    """Holds Python's interpreter lock."""
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """The threads of one process at one moment."""

    pid: int
    at: float
    source: str
    """`py-spy`, `py-spy --native`, `worker socket`, `faulthandler`."""
    threads: tuple[Thread, ...]

    @property
    def main(self) -> Thread | None:
        return next((thread for thread in self.threads if thread.main), None)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the job. None: could not be read."""

    pid: int
    parent: int | None
    role: Role
    state: str | None
    """Of the process, as proc(5): R, S, D (cannot be woken), T (stopped), t (traced), Z (zombie);
    None: it is gone."""
    rank: int | None
    local_rank: int | None
    world_size: int | None
    name: str | None
    command: tuple[str, ...]
    start_ticks: int | None
    cpu_seconds: float | None
    """Of all its threads, since it began."""
    wchan: str | None
    """Where in the kernel its main thread sleeps."""
    syscall: str | None
    """Name of the system call its main thread is in; with its file where known:
    `read /dev/pipe:[1]`."""
    container: str | None
    user: str | None
    main_cpu_seconds: float | None = None
    """Of its main thread alone."""
    rested: float | None = None
    """Seconds for which its main thread had not run by then, by the scheduler."""
    wait_status: int | None = None
    """How it ended, as waitpid(2) tells it, where its parent has not asked yet."""
    on_device: bool | None = None
    """Whether it holds an accelerator open."""


@dataclass(frozen=True, slots=True)
class Untold:
    """What could not be seen of a process, why, and how to let it be seen."""

    pid: int | None
    source: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Look:
    """All processes of the job at one moment, and the stacks that could be read."""

    at: float
    launcher: str | None
    """torchrun, mpirun, srun, accelerate, deepspeed, horovodrun, mp.spawn, python, …"""
    world_size: int | None
    processes: tuple[Process, ...]
    stacks: tuple[Stack, ...]
    untold: tuple[Untold, ...] = ()
    missing: tuple[int, ...] = ()
    """Ranks that should be on this host and for which there is no process."""

    @property
    def ranks(self) -> tuple[Process, ...]:
        return tuple(one for one in self.processes if one.role is Role.RANK)

    def stack(self, pid: int) -> Stack | None:
        """The last one that was read of this process, without native frames if there is one."""
        found = [one for one in self.stacks if one.pid == pid]
        return min(reversed(found), key=lambda one: "native" in one.source, default=None)
