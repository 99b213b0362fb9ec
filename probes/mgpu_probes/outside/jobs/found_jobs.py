"""A training job as the process table shows it: the role of each process, and missing ranks.

None: could not be read; `FoundJob.untold` says why."""

from __future__ import annotations

from dataclasses import dataclass

RANK = "rank"
LAUNCHER = "launcher"
LOADER = "loader"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class FoundProcess:
    pid: int
    parent: int
    role: str
    """`rank`, `launcher`, `loader` (a data-loader worker; its parent is its rank) or `other`."""
    state: str
    """Letter of proc(5): R, S, D (cannot be woken), T (stopped), t (traced), Z (zombie)."""
    rank: int | None
    """Of a loader and of whatever else a rank started: the rank that it works for."""
    local_rank: int | None
    world_size: int | None
    name: str
    """What the kernel calls its main thread: at most 15 characters."""
    command: tuple[str, ...]
    start_ticks: int
    """Clock ticks since boot, which tells a reused pid apart."""
    cpu_seconds: float
    uid: int | None
    """The effective user."""
    user: str | None
    container: str | None
    """Id of the container it runs in; None: in none, or ours."""
    inner_pid: int | None
    """Its pid as its own namespace numbers it, where that is another namespace than ours."""
    on_device: bool | None = None
    """Whether it holds an accelerator open; None: its open files may not be read."""


@dataclass(frozen=True, slots=True)
class FoundUntold:
    """What could not be seen, why, and how to let it be seen. Without a pid: of the whole job."""

    pid: int | None
    source: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The processes of one job on this host: its launchers first, then its ranks in their order,
    each followed by what it started."""

    launcher: str | None
    """torchrun, mpirun, srun, accelerate, deepspeed, horovodrun, mp.spawn, TF_CONFIG, python;
    None: nothing tells (ranks started by hand)."""
    launcher_pid: int | None
    world_size: int | None
    processes: tuple[FoundProcess, ...]
    missing: tuple[int, ...] = ()
    """Ranks that should be on this host and for which there is no process."""
    untold: tuple[FoundUntold, ...] = ()

    @property
    def ranks(self) -> tuple[FoundProcess, ...]:
        return tuple(process for process in self.processes if process.role == RANK)
