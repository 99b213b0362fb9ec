"""What `py-spy dump --json` prints, as threads."""

from __future__ import annotations

import json
from typing import Any

from mgpu_probes.outside.stacks import facts
from mgpu_probes.outside.stacks.facts import Frame, Json


def parse(raw: bytes, pid: int) -> list[Json]:
    """The threads in what `py-spy dump --json` prints; empty where it is no such thing."""
    try:
        listed = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    main = _main(items, pid)
    return [
        facts.thread(
            _frames(item),
            main=item is main,
            id=_whole(item.get("os_thread_id")),
            name=_text(item.get("thread_name")),
            active=_truth(item.get("active")),
            gil=_truth(item.get("owns_gil")),
        )
        for item in items
    ]


def complete(stack: Json) -> bool:
    """Whether the main thread's stack reaches down to where Python starts a program. One that does
    not is torn, or of a Python inside another program."""
    first = stack["threads"][0]
    return bool(first["main"] and first["frames"] and first["frames"][-1][0] in facts.STARTS)


def _main(items: list[dict[str, Any]], pid: int) -> dict[str, Any] | None:
    """The thread that Python calls so. Where no name could be read, the one with the id of its
    process, unless that is another one in a container."""
    named = [one for one in items if one.get("thread_name") == "MainThread"]
    if len(named) == 1:
        return named[0]
    by_id = (one for one in items if one.get("os_thread_id") == pid)
    return next(by_id, items[0] if len(items) == 1 else None)


def _frames(item: dict[str, Any]) -> list[Frame]:
    listed = item.get("frames")
    return [
        (
            _text(one.get("name")) or "?",
            _text(one.get("filename")) or "?",
            _whole(one.get("line")),
        )
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict)
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole and isinstance(value, int) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
