"""For how long a thread has not run, as the scheduler knows it: one look tells a wait of an hour
from one of a moment.

`se.exec_start` in /proc/PID/sched (kernel/sched/debug.c) is when the thread last ran, by the clock
of the core that it ran on. These clocks may differ by seconds in virtual machines, so each is read
on its own core, from the same field of a thread of ours. Kernels that do not tell it
(CONFIG_SCHED_DEBUG) leave it unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mgpu_probes.outside import tasks
from mgpu_probes.outside.processes import PROC

MOST_CORES = 64
_LAST_RAN = re.compile(r"^se\.exec_start\s*:\s*(\d+\.\d+)$", re.MULTILINE)
_CORE = 36
"""`processor` of proc_pid_stat(5), counted from the state."""


def rested(pids: Iterable[int], proc: Path = PROC) -> dict[int, float]:
    """pid -> seconds for which its main thread has not run; those that run, and of which it is not
    told, are left out."""
    last: dict[int, tuple[float, int]] = {}
    for pid in pids:
        fields, ran = tasks.stat(proc, pid), _last_ran(proc / str(pid))
        if fields and len(fields) > _CORE and fields[0] != "R" and ran is not None:
            last[pid] = (ran, int(fields[_CORE]))
    cores = sorted({core for _, core in last.values()})[:MOST_CORES]
    now = {core: clock for core in cores if (clock := _clock(core, proc)) is not None}
    return {
        pid: max(0.0, round(now[core] - ran, 3)) for pid, (ran, core) in last.items() if core in now
    }


def _clock(core: int, proc: Path) -> float | None:
    """What a core's clock says now, in seconds; None where we may not run on it."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})  # of this thread alone
    except OSError:
        return None
    try:
        return _last_ran(proc / "thread-self")
    finally:
        os.sched_setaffinity(0, allowed)


def _last_ran(folder: Path) -> float | None:
    try:
        found = _LAST_RAN.search((folder / "sched").read_text("utf-8", "replace"))
    except OSError:
        return None
    return None if found is None else float(found[1]) * 1e-3
