"""What a machine tells of deaths, as typed facts. No judgement; None: unknown.

Times are seconds since the epoch; memory is bytes. Reading the file is `ending_files`' work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that the kernel's log says was killed for want of memory."""

    pid: int
    """As the kernel numbers it: see `Ending.own_pids`."""
    at: float | None
    """By the kernel's clock, which may be some seconds off."""
    name: str | None
    resident: int | None
    limited: str | None
    """The control group whose limit was reached, by its path; None: unknown or no group's."""
    by_group: bool | None
    """True: a group's limit was reached. False: the whole machine had no memory left."""


@dataclass(frozen=True, slots=True)
class Counters:
    """A memory group at one moment. `killed`: its processes that the OOM killer took so far.
    `refused`: times its limit was met with nothing left to drop."""

    limit: int | None = None
    used: int | None = None
    peak: int | None = None
    killed: int | None = None
    refused: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    name: str
    before: Counters
    now: Counters
    at: float | None
    """When `killed` was last seen to have risen."""

    @property
    def killed(self) -> int | None:
        """Processes killed while it was watched."""
        if self.before.killed is None or self.now.killed is None:
            return None
        return max(0, self.now.killed - self.before.killed)


@dataclass(frozen=True, slots=True)
class LimitedProcess:
    """A process of the job: how many files it had open, and its limits by name, the soft and the
    hard one: `files`, `cpu_seconds`, `address_space`, `data`, `file_size`, `processes`, `core`.
    A limit that is not set is left out."""

    pid: int
    parent: int | None
    files: int | None
    most_files: int | None
    limits: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    """Memory groups above it, the innermost first: names in `Ending.groups`."""


@dataclass(frozen=True, slots=True)
class Room:
    """Of a file system, for who is not root."""

    size: int
    free: int
    inodes: int | None
    inodes_free: int | None
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """`roles`: `shm`, `tmp`, `cwd`, `written` (the job had a file open for writing there), `mount`
    (a local file system that may be written to)."""

    path: str
    roles: tuple[str, ...]
    before: Room
    """When the watch began."""
    now: Room
    least: Room
    """When it was fullest."""

    @property
    def in_use(self) -> bool:
        """The job is known to work there."""
        return bool(set(self.roles) - {"mount"})


@dataclass(frozen=True, slots=True)
class Ending:
    """One host's tale."""

    host: str
    since: float | None
    at: float | None
    log_trouble: str | None
    """Why the kernel's log could not be read; None: it was read."""
    own_pids: bool
    """The kernel's pids are the recording's, too: not inside a container."""
    kills: tuple[Kill, ...] = ()
    machine_kills: int | None = None
    """Processes that the OOM killer took on the whole machine while it was watched."""
    machine_at: float | None = None
    """When one was last seen to have been taken."""
    groups: tuple[MemoryGroup, ...] = ()
    processes: Mapping[int, LimitedProcess] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def group(self, name: str) -> MemoryGroup | None:
        return next((group for group in self.groups if group.name == name), None)
