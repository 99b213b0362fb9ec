"""How a machine recorded that processes ended, in `ending.json`: OOM kills, limits, full disks.

Facts alone; None: unknown. Times are seconds since the epoch; memory is bytes. The file is
untrusted until it is parsed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from mgpu_doctor.case.lenient_json import Json, Moment, Positive, Whole, reader

MOST_KILLS = 256
MOST_PROCESSES = 4096
Path = Annotated[str, Meta(max_length=600)]
"""Most characters of a control group's path."""
Pid = Annotated[int, Meta(ge=0, lt=10**11)]
Limit = Whole | None


@dataclass(frozen=True, slots=True)
class Kill:
    """A process that was killed for lack of memory, by the kernel's log."""

    pid: int
    """Pid in the kernel's numbering: see `Ending.own_pids`."""
    at: float | None
    """Time by the kernel's clock, which may be off by some seconds."""
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

    limit: Whole | None = None
    used: Whole | None = None
    peak: Whole | None = None
    killed: Whole | None = None
    refused: Whole | None = None


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    name: str
    before: Counters
    now: Counters
    at: float | None
    """When `killed` was last seen to rise."""

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
    """Free space of a file system for users other than root."""

    size: Whole
    free: Whole
    inodes: Whole | None = None
    inodes_free: Whole | None = None
    at: Moment | None = None


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
    """The sample in which it was fullest."""

    @property
    def in_use(self) -> bool:
        """Whether the job is known to use it."""
        return bool(set(self.roles) - {"mount"})


@dataclass(frozen=True, slots=True)
class Ending:
    """The ending record of one host."""

    host: str
    since: float | None
    at: float | None
    log_trouble: str | None
    """Why the kernel's log could not be read; None: it was read."""
    own_pids: bool
    """The kernel's pids are the recording's, too: not inside a container."""
    kills: tuple[Kill, ...] = ()
    machine_kills: int | None = None
    """Processes that the OOM killer killed on the whole machine while it was watched."""
    machine_at: float | None = None
    """When one was last seen to be killed."""
    groups: tuple[MemoryGroup, ...] = ()
    processes: Mapping[int, LimitedProcess] = field(default_factory=dict)
    places: tuple[Place, ...] = ()

    def group(self, name: str) -> MemoryGroup | None:
        return next((group for group in self.groups if group.name == name), None)


class _Log(msgspec.Struct, frozen=True):
    trouble: Annotated[str, Meta(max_length=200)] | None = None
    own_pids: bool | None = None


class _Kills(msgspec.Struct, frozen=True):
    before: Whole | None = None
    now: Whole | None = None
    at: Moment | None = None


class _Kill(msgspec.Struct, frozen=True):
    pid: Positive
    at: Moment | None = None
    name: Annotated[str, Meta(max_length=64)] | None = None
    resident: Whole | None = None
    limited: Annotated[str, Meta(max_length=300)] | None = None
    constraint: Annotated[str, Meta(max_length=40)] | None = None


class _Group(msgspec.Struct, frozen=True):
    before: Counters = Counters()
    now: Counters = Counters()
    at: Moment | None = None


class _Process(msgspec.Struct, frozen=True):
    parent: Whole | None = None
    files: Whole | None = None
    most_files: Whole | None = None
    limits: Annotated[
        Mapping[Annotated[str, Meta(max_length=40)], tuple[Limit, Limit]], Meta(max_length=32)
    ] = {}
    group: Path | None = None


class _Place(msgspec.Struct, frozen=True):
    path: Annotated[str, Meta(max_length=500)]
    now: Room
    before: Room | None = None
    least: Room | None = None
    roles: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=20)], ...], Meta(max_length=32)
    ] = ()


class _File(msgspec.Struct, frozen=True):
    """`ending.json`."""

    host: Annotated[str, Meta(max_length=64)] | None = None
    since: Moment | None = None
    at: Moment | None = None
    kernel_log: _Log | None = None
    machine_kills: _Kills = _Kills()
    kills: Annotated[tuple[_Kill, ...], Meta(max_length=MOST_KILLS)] = ()
    groups: Annotated[Mapping[Path, _Group], Meta(max_length=256)] = {}
    processes: Annotated[Mapping[Pid, _Process], Meta(max_length=MOST_PROCESSES)] = {}
    places: Annotated[tuple[_Place, ...], Meta(max_length=64)] = ()


_read_file = reader(_File)


def ending_of(host: str, content: Mapping[str, Json]) -> Ending:
    """The ending record in one host's file. Invalid values are left out."""
    file = _read_file(content) or _File()
    log = file.kernel_log or _Log()
    before, now = file.machine_kills.before, file.machine_kills.now
    groups = tuple(
        MemoryGroup(name, group.before, group.now, group.at) for name, group in file.groups.items()
    )
    return Ending(
        host=file.host or host,
        since=file.since,
        at=file.at,
        log_trouble="it was not recorded" if log == _Log() else log.trouble,
        own_pids=log.own_pids is True,
        kills=tuple(map(_kill, file.kills)),
        machine_kills=None if before is None or now is None else max(0, now - before),
        machine_at=file.machine_kills.at,
        groups=groups,
        processes={pid: _limited(pid, process, groups) for pid, process in file.processes.items()},
        places=tuple(
            Place(
                place.path,
                place.roles,
                place.before or place.now,
                place.now,
                place.least or place.now,
            )
            for place in file.places
        ),
    )


def _kill(kill: _Kill) -> Kill:
    by_group = None if kill.constraint is None else kill.constraint == "CONSTRAINT_MEMCG"
    return Kill(kill.pid, kill.at, kill.name, kill.resident, kill.limited, by_group)


def _limited(pid: int, process: _Process, groups: Iterable[MemoryGroup]) -> LimitedProcess:
    above = [known.name for known in groups if f"{process.group}/".startswith(f"{known.name}/")]
    return LimitedProcess(
        pid=pid,
        parent=process.parent,
        files=process.files,
        most_files=process.most_files,
        limits=process.limits,
        groups=tuple(sorted(above, key=len, reverse=True)),
    )
