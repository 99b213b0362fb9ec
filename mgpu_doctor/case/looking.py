"""Looks as typed facts: from a live job (`outside.job_snapshot`) or a line of `looks.jsonl`.

Both have the same JSON, which is a stranger's until it is parsed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mgpu_doctor.case.files import Json, moment, number, text, whole
from mgpu_doctor.case.looks import Frame, Look, Process, Role, Stack, Thread, Untold

MOST_PROCESSES = 16_384
MOST_STACKS = 16_384
MOST_THREADS = 256
MOST_FRAMES = 512
MOST_TEXT = 400
MOST_WORDS = 64


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
