"""A look at a job from outside: who its processes are, in what state, and where they stand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.found import LOADER, RANK, FoundJob, FoundProcess
from mgpu_probes.outside.stacks import kernel, pyspy, reading, trained
from mgpu_probes.outside.stacks.holders import Holders
from mgpu_probes.outside.stacks.kernel import Moment
from mgpu_probes.outside.stacks.reading import Aid, Reading
from mgpu_probes.outside.stacks.rest import rested

Json = dict[str, Any]

MOST_STACKS = 4_096
MOST_WORDS = 64
MOST_TEXT = 400
_READERS = min(32, 4 * (os.cpu_count() or 1))
"""py-spy waits little and computes some milliseconds."""


def look(
    job: FoundJob,
    *,
    stacks: bool = True,
    loaders: bool = True,
    native: Iterable[int] = (),
    timeout: float = 5.0,
    aids: Mapping[int, Aid] | None = None,
) -> Json:
    """One look, as the JSON that `looks.jsonl` holds. It tolerates whatever ends meanwhile.

    Without `stacks` it costs some 100 µs a process. `loaders`: the stacks of data-loader workers
    too, after those of the ranks. `native`: pids whose C functions are wanted too; each of them is
    paused for up to 1.2 seconds. `timeout`: seconds after which no more stacks are read. `aids`: by
    pid, what instrumented ranks have promised.
    """
    at, end = time.time(), time.monotonic() + timeout
    holders = Holders()
    training = {one.pid: trained.thread(holders.proc, one.pid, one.name) for one in job.processes}
    moments = {
        one.pid: kernel.moment(one.pid, one.start_ticks, holders, training[one.pid])
        for one in job.processes
    }
    rests = rested(
        one.pid for one in job.processes if one.role in (RANK, LOADER) and training[one.pid] is None
    )
    found: list[Reading] = []
    if stacks:
        roles = (RANK, LOADER) if loaders else (RANK,)
        whose = [one for one in job.processes if one.role in roles and _runs(moments[one.pid])]
        whose.sort(key=lambda one: roles.index(one.role))
        found = _read_all(whose[:MOST_STACKS], frozenset(native), end, aids or {})
    return {
        "at": at,
        "launcher": job.launcher,
        "world_size": job.world_size,
        "processes": [
            {**_process(one, moments[one.pid]), "rested": rests.get(one.pid)}
            for one in job.processes
        ],
        "stacks": [
            trained.put_first(stack) if training.get(stack["pid"]) else stack
            for one in found
            for stack in one.stacks
        ],
        "missing": list(job.missing),
        "untold": [asdict(one) for one in (*job.untold, *(u for one in found for u in one.untold))],
    }


def _runs(moment: Moment) -> bool:
    return moment.state is not None and moment.state not in "ZXx"


def _read_all(
    whose: Iterable[FoundProcess], native: frozenset[int], end: float, aids: Mapping[int, Aid]
) -> list[Reading]:
    def read(one: FoundProcess) -> Reading:
        aid = aids.get(one.pid)
        wanted = one.pid in native
        return reading.read(one.pid, end, native=wanted, aid=aid, started=one.start_ticks)

    pyspy.program()  # here: sysconfig is not safe in several threads before Python 3.12
    with ThreadPoolExecutor(_READERS, "stacks") as readers:
        return list(readers.map(read, whose))


def _process(found: FoundProcess, now: Moment) -> Json:
    return {
        "pid": found.pid,
        "parent": found.parent,
        "role": found.role,
        "state": now.state,
        "wait_status": processes.wait_status(found.pid, found.start_ticks),
        "rank": found.rank,
        "local_rank": found.local_rank,
        "world_size": found.world_size,
        "name": found.name,
        "command": [word[:MOST_TEXT] for word in found.command[:MOST_WORDS]],
        "start_ticks": found.start_ticks,
        "cpu_seconds": now.cpu_seconds,
        "main_cpu_seconds": now.main_cpu_seconds,
        "wchan": now.wchan,
        "syscall": now.syscall,
        "container": found.container,
        "user": found.user,
        "on_device": found.on_device,
    }
