"""Stacks as JSON: the same from every way of reading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Json = dict[str, Any]
Frame = tuple[str, str, int | None]
"""Function, file, line."""

STARTS = frozenset({"<module>", "_run_module_as_main"})
"""Where Python starts a program: the outermost function of a main thread."""
MOST_THREADS = 256
INNERMOST, OUTERMOST = 400, 100
"""Frames that are kept of a deep stack: where it is, and how it came there."""
MOST_TEXT = 400


def thread(
    frames: Sequence[Frame],
    *,
    main: bool,
    id: int | None = None,
    name: str | None = None,
    active: bool | None = None,
    gil: bool | None = None,
) -> Json:
    """`frames`: innermost first. `id`: the kernel's thread id, where the source tells it."""
    return {
        "id": id,
        "name": None if name is None else name[:MOST_TEXT],
        "main": main,
        "active": active,
        "gil": gil,
        "frames": [list(_bounded(one)) for one in _ends(frames)],
    }


def stack(pid: int, at: float, source: str, threads: Iterable[Json]) -> Json:
    """`at`: seconds since the epoch. The main thread comes first, so that no bound cuts it."""
    ordered = sorted(threads, key=lambda one: not one["main"])
    return {"pid": pid, "at": at, "source": source, "threads": ordered[:MOST_THREADS]}


def _bounded(frame: Frame) -> Frame:
    function, file, line = frame
    return function[:MOST_TEXT], file[:MOST_TEXT], line


def _ends(frames: Sequence[Frame]) -> Iterable[Frame]:
    left_out = len(frames) - INNERMOST - OUTERMOST
    if left_out <= 0:
        return frames
    note: Frame = (f"… {left_out} frames", "…", None)
    return [*frames[:INNERMOST], note, *frames[-OUTERMOST:]]
