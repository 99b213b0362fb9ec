"""Threads and stacks as JSON, the same from every source.

py-spy takes a thread's id from Python. That id is unknown before Python 3.11 (then glibc's is
read), stale in a forked child of 3.11, and another one in a container; then py-spy is also wrong
about whether the thread runs. So the ids are matched with those of the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mgpu_probes.outside import host_usage
from mgpu_probes.outside.processes import PROC

Json = dict[str, Any]
Frame = tuple[str, str, int | None]
"""Function, file, line."""

STARTS = frozenset({"<module>", "_run_module_as_main"})
"""Where Python starts a program: the outermost function of a main thread."""
MOST_THREADS = 256
INNERMOST, OUTERMOST = 400, 100
"""Numbers of frames that are kept of a deep stack, at its two ends."""
MOST_TEXT = 400
MOST_THREAD_IDS = 4_096


def make_thread(
    frames: Sequence[Frame],
    *,
    main: bool,
    id: int | None = None,
    name: str | None = None,
    active: bool | None = None,
    gil: bool | None = None,
) -> Json:
    """A thread as JSON. `frames`: innermost first. `id`: the kernel's thread id, if known."""
    return {
        "id": id,
        "name": None if name is None else name[:MOST_TEXT],
        "main": main,
        "active": active,
        "gil": gil,
        "frames": [list(_bounded(end)) for end in _ends(frames)],
    }


def make_stack(pid: int, at: float, source: str, threads: Iterable[Json]) -> Json:
    """A stack as JSON. `at`: seconds since the epoch. The main thread comes first."""
    ordered = sorted(threads, key=lambda thread: not thread["main"])
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


def settle_threads(threads: Iterable[Json], pid: int, proc: Path = PROC) -> list[Json]:
    """The threads of a process with their ids in this pid namespace, and whether each is runnable
    (None: unknown)."""
    ids = _ids(pid, proc)
    return [_settle(thread, pid, ids, proc) for thread in threads]


def _settle(thread: Json, pid: int, ids: Mapping[int, int], proc: Path) -> Json:
    thread_id = thread["id"]
    if thread_id is not None and ids.get(thread_id) == thread_id and thread["active"] is not None:
        return thread
    id = pid if thread["main"] else ids.get(thread_id)
    fields = [] if id is None else host_usage.read_stat(proc / str(pid) / "task", id)
    return {**thread, "id": id, "active": fields[0] == "R" if fields else None}


def _ids(pid: int, proc: Path) -> dict[int, int]:
    """Thread ids in the process's innermost pid namespace -> thread ids in ours."""
    folder = proc / str(pid) / "task"
    try:
        ours = [int(name) for name in os.listdir(folder) if name.isdecimal()][:MOST_THREAD_IDS]
    except OSError:
        return {}
    if _inner(folder, pid) in (None, pid):
        return {id: id for id in ours}
    return {inner: id for id in ours if (inner := _inner(folder, id)) is not None}


def _inner(folder: Path, id: int) -> int | None:
    """The thread id in its innermost namespace: NSpid in proc_pid_status(5); None if unknown."""
    try:
        text = (folder / str(id) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in text.split("\n"):
        key, _, numbers = line.partition(":")
        if key == "NSpid":
            last = numbers.split()[-1:]
            return int(last[0]) if last and last[0].isdecimal() else None
    return None
