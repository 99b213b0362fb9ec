"""Threads and stacks as JSON, the same from every source.

py-spy takes a thread's id from Python. That id is unknown before Python 3.11 (then glibc's is
read), stale in a forked child of 3.11, and another one in a container; then py-spy is also wrong
about whether the thread runs. So the ids are matched with those of the kernel."""

from __future__ import annotations

import os
import platform
import struct
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
_ID_OFFSETS = {"x86_64": 0x2D0, "aarch64": 0xD0}
"""Bytes before the kernel's id in glibc's `struct pthread`, by machine (nptl/descr.h, glibc 2.3 to
2.41): a header and a list. `pahole -C pthread libc.so.6` shows them."""
_MOST_ADDRESS = 1 << 62


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


def read_thread_id(pid: int, pthread: int) -> int | None:
    """The id of the thread with this pthread_t, the address of its `struct pthread`, in the
    innermost pid namespace of its process; None: unknown. Where the layout differs, as in musl, it
    is no id of a thread. Neither pauses nor changes the process; needs the permission to read its
    memory."""
    offset = _ID_OFFSETS.get(platform.machine())
    if offset is None or not 0 < pthread < _MOST_ADDRESS:
        return None
    try:
        memory = os.open(PROC / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        raw = os.pread(memory, 4, pthread + offset)
    except OSError:
        return None
    finally:
        os.close(memory)
    (id,) = struct.unpack("=i", raw) if len(raw) == 4 else (0,)
    return id if id > 0 else None


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
