"""A training job as the process table shows it: the role of each process, and missing ranks.

A field is None if it could not be read; `RunningJob.unread` lists the reasons."""

from __future__ import annotations

from dataclasses import dataclass

RANK = "rank"
LAUNCHER = "launcher"
LOADER = "loader"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class JobProcess:
    pid: int
    parent: int
    role: str
    """`rank`, `launcher`, `loader` (a data-loader worker; its parent is its rank) or `other`."""
    state: str
    """Letter of proc(5): R, S, D (cannot be woken), T (stopped), t (traced), Z (zombie)."""
    rank: int | None
    """The rank that the process is, or that started it."""
    local_rank: int | None
    world_size: int | None
    name: str
    """The kernel's name of its main thread, at most 15 characters."""
    command: tuple[str, ...]
    start_ticks: int
    """Start time in clock ticks since boot; distinguishes processes with the same pid."""
    cpu_seconds: float
    uid: int | None
    """The effective user."""
    user: str | None
    container: str | None
    """Id of the container that it runs in; None: no container, or the same as ours."""
    inner_pid: int | None
    """Its pid within its own pid namespace; None if it shares ours."""
    on_device: bool | None = None
    """Whether it has an accelerator open; None: its open files are not readable."""


@dataclass(frozen=True, slots=True)
class UnreadSource:
    """A source that could not be read, why, and what to do. `pid` None: the whole job."""

    pid: int | None
    source: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The processes of one job on this host: its launchers first, then its ranks in their order,
    each followed by what it started."""

    launcher: str | None
    """torchrun, mpirun, srun, accelerate, deepspeed, horovodrun, mp.spawn, TF_CONFIG, python;
    None: unknown (ranks started by hand)."""
    launcher_pid: int | None
    world_size: int | None
    processes: tuple[JobProcess, ...]
    missing: tuple[int, ...] = ()
    """Ranks that should run on this host and have no process."""
    unread: tuple[UnreadSource, ...] = ()
    rendezvous: tuple[str, ...] = ()
    """Equal on all hosts of the job, and only there; empty: unknown, or it has one host."""
    apart: bool = False
    """Whether the ranks are several that multiprocessing started, and none is in a process group:
    each trains by itself, or they have not joined one yet."""

    @property
    def ranks(self) -> tuple[JobProcess, ...]:
        return tuple(process for process in self.processes if process.role == RANK)
