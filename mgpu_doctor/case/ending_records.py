"""How a machine recorded that processes ended, in `ending.json`: OOM kills, limits, full disks.

Facts alone; None: unknown. Times are seconds since the epoch; memory is bytes. The file is a
stranger's until it is parsed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mgpu_doctor.case.untrusted_json import Json, moment, text, whole

MOST_KILLS = 256
MOST_GROUPS = 256
MOST_PROCESSES = 4096
MOST_PLACES = 64
MOST_NAMES = 32
LONGEST_NAME = 600


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


def ending_of(host: str, content: Mapping[str, Json]) -> Ending:
    """One host's file. What is not as it should be is left out."""
    log, machine = _object(content.get("kernel_log")), _object(content.get("machine_kills"))
    groups = tuple(
        _group(known, one)
        for name, one in _items(content.get("groups"), MOST_GROUPS)
        if (known := text(name, LONGEST_NAME)) is not None
    )
    before, now = whole(machine.get("before")), whole(machine.get("now"))
    return Ending(
        host=text(content.get("host"), 64) or host,
        since=moment(content.get("since")),
        at=moment(content.get("at")),
        log_trouble=text(log.get("trouble"), 200) if log else "it was not recorded",
        own_pids=log.get("own_pids") is True,
        kills=tuple(
            kill
            for one in _list(content.get("kills"), MOST_KILLS)
            if (kill := _kill(one)) is not None
        ),
        machine_kills=None if before is None or now is None else max(0, now - before),
        machine_at=moment(machine.get("at")),
        groups=groups,
        processes={
            int(pid): _process(int(pid), one, groups)
            for pid, one in _items(content.get("processes"), MOST_PROCESSES)
            if len(pid) < 12 and pid.isascii() and pid.isdigit()
        },
        places=tuple(
            place
            for one in _list(content.get("places"), MOST_PLACES)
            if (place := _place(one)) is not None
        ),
    )


def _kill(one: Mapping[str, Json]) -> Kill | None:
    pid, constraint = whole(one.get("pid"), 1), text(one.get("constraint"), 40)
    if pid is None:
        return None
    return Kill(
        pid=pid,
        at=moment(one.get("at")),
        name=text(one.get("name"), 64),
        resident=whole(one.get("resident")),
        limited=text(one.get("limited"), 300),
        by_group=None if constraint is None else constraint == "CONSTRAINT_MEMCG",
    )


def _group(name: str, one: Mapping[str, Json]) -> MemoryGroup:
    before, now = _counters(one.get("before")), _counters(one.get("now"))
    return MemoryGroup(name, before, now, moment(one.get("at")))


def _counters(value: Json) -> Counters:
    one = _object(value)
    names = ("limit", "used", "peak", "killed", "refused")
    return Counters(**{name: whole(one.get(name)) for name in names})


def _process(pid: int, one: Mapping[str, Json], groups: Iterable[MemoryGroup]) -> LimitedProcess:
    limits: dict[str, tuple[int | None, int | None]] = {}
    for name, pair in _object(one.get("limits")).items():
        known = text(name, 40)
        if known and len(limits) < MOST_NAMES and isinstance(pair, list) and len(pair) == 2:
            limits[known] = (whole(pair[0]), whole(pair[1]))
    group = text(one.get("group"), LONGEST_NAME)
    above = [known.name for known in groups if f"{group}/".startswith(f"{known.name}/")]
    return LimitedProcess(
        pid=pid,
        parent=whole(one.get("parent")),
        files=whole(one.get("files")),
        most_files=whole(one.get("most_files")),
        limits=limits,
        groups=tuple(sorted(above, key=len, reverse=True)),
    )


def _place(one: Mapping[str, Json]) -> Place | None:
    path, now = text(one.get("path"), 500), _room(one.get("now"))
    before, least = _room(one.get("before")), _room(one.get("least"))
    roles = one.get("roles")
    if path is None or now is None:
        return None
    known = roles[:MOST_NAMES] if isinstance(roles, list) else []
    names = tuple(name for role in known if (name := text(role, 20)) is not None)
    return Place(path, names, before or now, now, least or now)


def _room(value: Json) -> Room | None:
    one = _object(value)
    size, free = whole(one.get("size")), whole(one.get("free"))
    if size is None or free is None:
        return None
    inodes, left = whole(one.get("inodes")), whole(one.get("inodes_free"))
    return Room(size, free, inodes, left, moment(one.get("at")))


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json, most: int) -> Iterator[Mapping[str, Json]]:
    for one in value[:most] if isinstance(value, list) else ():
        yield _object(one)


def _items(value: Json, most: int) -> Iterator[tuple[str, Mapping[str, Json]]]:
    for _, (name, one) in zip(range(most), _object(value).items(), strict=False):
        yield name, _object(one)
