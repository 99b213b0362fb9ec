"""Which thread of the kernel each Python thread is, and whether it runs.

py-spy takes a thread's id from Python. That id is unknown before Python 3.11, stale in a forked
child of 3.11, and another one in a container; and then what py-spy says of its activity is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mgpu_probes.outside import tasks
from mgpu_probes.outside.processes import PROC
from mgpu_probes.outside.stacks.facts import Json

MOST = 4_096


def settled(threads: Iterable[Json], pid: int, proc: Path = PROC) -> list[Json]:
    """The threads of a process with their ids as this namespace numbers them, and whether each is
    on a CPU or ready to be; None where unknown."""
    ids = _ids(pid, proc)
    return [_settled(one, pid, ids, proc) for one in threads]


def _settled(thread: Json, pid: int, ids: Mapping[int, int], proc: Path) -> Json:
    told = thread["id"]
    if told is not None and ids.get(told) == told:
        return thread
    id = pid if thread["main"] else ids.get(told)
    fields = [] if id is None else tasks.stat(proc / str(pid) / "task", id)
    return {**thread, "id": id, "active": fields[0] == "R" if fields else None}


def _ids(pid: int, proc: Path) -> dict[int, int]:
    """The ids of the process's threads: as its own innermost namespace numbers them, and as ours
    does."""
    folder = proc / str(pid) / "task"
    try:
        ours = [int(name) for name in os.listdir(folder) if name.isdecimal()][:MOST]
    except OSError:
        return {}
    if _inner(folder, pid) in (None, pid):
        return {id: id for id in ours}
    return {inner: id for id in ours if (inner := _inner(folder, id)) is not None}


def _inner(folder: Path, id: int) -> int | None:
    """The last number of NSpid in proc_pid_status(5)."""
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
