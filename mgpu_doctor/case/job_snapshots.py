"""Snapshots of a job's processes from outside: who they are, in what state, their stacks.

From a live job (`mgpu_probes.outside.job_snapshot`) or a line of `looks.jsonl`: both have the same
JSON, which is a stranger's until it is parsed here. Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mgpu_doctor.case.lenient_json import Json
from mgpu_doctor.case.untrusted_json import moment, number, parse_json, text, whole


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


MOST_PROCESSES = 16_384
MOST_STACKS = 16_384
MOST_THREADS = 256
MOST_FRAMES = 512
MOST_TEXT = 400
MOST_WORDS = 64


def decode_look(line: bytes) -> Look | None:
    """A line of looks.jsonl; None where it cannot be read or has no time."""
    try:
        parsed = parse_json(line)
    except ValueError:
        return None
    return look_of(parsed) if isinstance(parsed, dict) else None


def look_of(line: Mapping[str, Json]) -> Look | None:
    """A look from its JSON; None where it has no time."""
    at = moment(line.get("at"))
    if at is None:
        return None
    return Look(
        at=at,
        launcher=text(line.get("launcher"), 64),
        world_size=whole(line.get("world_size"), 1),
        processes=tuple(map(_process, _objects(line, "processes", MOST_PROCESSES, "pid"))),
        stacks=tuple(map(_stack, _objects(line, "stacks", MOST_STACKS, "pid", "at"))),
        untold=tuple(map(_untold, _objects(line, "untold", MOST_STACKS))),
        missing=_ranks(line.get("missing")),
    )


def _ranks(numbers: Json) -> tuple[int, ...]:
    listed = numbers[:MOST_PROCESSES] if isinstance(numbers, list) else ()
    return tuple(rank for one in listed if (rank := whole(one)) is not None)


def _objects(
    holder: Mapping[str, Json], key: str, most: int, *needed: str
) -> Iterator[Mapping[str, Json]]:
    """The objects of a list that have all the numbers they need."""
    items = holder.get(key)
    for item in items[:most] if isinstance(items, list) else ():
        if isinstance(item, dict) and all(number(item.get(name)) is not None for name in needed):
            yield item


def _process(item: Mapping[str, Json]) -> Process:
    role = item.get("role")
    command = item.get("command")
    words = command[:MOST_WORDS] if isinstance(command, list) else []
    return Process(
        pid=int(item["pid"]),
        parent=whole(item.get("parent")),
        role=Role(role) if role in {known.value for known in Role} else Role.OTHER,
        state=text(item.get("state"), 1),
        rank=whole(item.get("rank")),
        local_rank=whole(item.get("local_rank")),
        world_size=whole(item.get("world_size"), 1),
        name=text(item.get("name"), 64),
        command=tuple(text(word, MOST_TEXT) or "" for word in words),
        start_ticks=whole(item.get("start_ticks")),
        cpu_seconds=number(item.get("cpu_seconds")),
        wchan=text(item.get("wchan"), 64),
        syscall=text(item.get("syscall"), MOST_TEXT),
        container=text(item.get("container"), 128),
        user=text(item.get("user"), 64),
        main_cpu_seconds=number(item.get("main_cpu_seconds")),
        rested=number(item.get("rested")),
        wait_status=whole(item.get("wait_status"), 0, 0xFFFF),
        on_device=_truth(item.get("on_device")),
    )


def _stack(item: Mapping[str, Json]) -> Stack:
    threads = _objects(item, "threads", MOST_THREADS)
    return Stack(
        pid=int(item["pid"]),
        at=float(item["at"]),
        source=text(item.get("source"), 64) or "unknown",
        threads=tuple(map(_thread, threads)),
    )


def _thread(item: Mapping[str, Json]) -> Thread:
    frames = item.get("frames")
    listed = frames[:MOST_FRAMES] if isinstance(frames, list) else []
    return Thread(
        id=whole(item.get("id")),
        name=text(item.get("name"), 64),
        main=item.get("main") is True,
        active=_truth(item.get("active")),
        gil=_truth(item.get("gil")),
        frames=tuple(
            Frame(text(one[0], MOST_TEXT) or "?", text(one[1], MOST_TEXT) or "?", whole(one[2]))
            for one in listed
            if isinstance(one, list) and len(one) == 3
        ),
    )


def _untold(item: Mapping[str, Json]) -> Untold:
    return Untold(
        pid=whole(item.get("pid")),
        source=text(item.get("source"), 64) or "unknown",
        reason=text(item.get("reason"), MOST_TEXT) or "",
        remedy=text(item.get("remedy"), MOST_TEXT) or "",
    )


def _truth(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None
