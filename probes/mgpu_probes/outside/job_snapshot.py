"""A snapshot of a running job: its processes, their states, and their stacks.

In workers of Ray Train the thread that trains is not the main one. The probe names that thread
(`inprocess/frameworks/ray/ray_hooks.py`), and the kernel shows the name in /proc/PID/task. In a job
without the probe, its stack shows which thread it is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mgpu_probes.inprocess.layout import TRAINS
from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.running_jobs import LOADER, RANK, JobProcess, RunningJob
from mgpu_probes.outside.stacks import kernel_waits, pyspy_stacks, stack_reader
from mgpu_probes.outside.stacks.kernel_waits import Holders, KernelState, measure_idle_seconds
from mgpu_probes.outside.stacks.source_loops import calls_of, loops_around
from mgpu_probes.outside.stacks.stack_reader import Aid, Reading

Json = dict[str, Any]

_RAY_WORKER = "ray::RayTrainWo"
"""The kernel's name of the process, cut to 15 characters."""
_THREAD_START = ("_run_target", "worker_group/thread_runner.py")
"""Function and file in which the training thread begins (Ray 2.60)."""

MOST_STACKS = 4_096
MOST_WORDS = 64
MOST_TEXT = 400
_READERS = min(32, 4 * (os.cpu_count() or 1))
"""Parallel readings: py-spy hardly waits and computes for some milliseconds."""


def find_training_thread(proc: Path, pid: int, name: str) -> int | None:
    """The thread id of the training thread, if this is a worker of Ray Train; None otherwise."""
    if name != _RAY_WORKER:
        return None
    folder = proc / str(pid) / "task"
    try:
        tasks = [name for name in os.listdir(folder) if name.isdecimal()]
    except OSError:
        return None
    return next((int(task) for task in tasks if _comm(folder / task) == TRAINS), None)


def put_training_thread_first(stack: Json) -> Json:
    """The stack with the training thread as the main thread, if there is one."""
    training = _find_training_stack(stack)
    if training is None:
        return stack
    others = [{**thread, "main": False} for thread in stack["threads"] if thread is not training]
    return {**stack, "threads": [{**training, "main": True}, *others]}


def _find_training_stack(stack: Json) -> Json | None:
    """The training thread of a worker of Ray Train; None: it does not train at the moment."""
    threads: list[Json] = stack["threads"]
    return next((thread for thread in threads if any(map(_starts_thread, thread["frames"]))), None)


def _starts_thread(frame: Sequence[Any]) -> bool:
    return str(frame[0]).endswith(_THREAD_START[0]) and str(frame[1]).endswith(_THREAD_START[1])


def _comm(folder: Path) -> str:
    try:
        return (folder / "comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def take_snapshot(
    job: RunningJob,
    *,
    stacks: bool = True,
    loaders: bool = True,
    native: Iterable[int] = (),
    timeout: float = 5.0,
    aids: Mapping[int, Aid] | None = None,
) -> Json:
    """A snapshot, as the JSON in `looks.jsonl`. Processes may end meanwhile.

    Without `stacks` it costs about 100 µs per process. `loaders`: also read the stacks of
    data-loader workers, after those of the ranks. `native`: pids whose C functions are also read;
    each is paused for up to 1.2 seconds. `timeout`: seconds after which no more stacks are read.
    `aids`: pid -> what an instrumented rank offers.
    """
    at, end = time.time(), time.monotonic() + timeout
    holders = Holders()
    training = {
        process.pid: find_training_thread(holders.proc, process.pid, process.name)
        for process in job.processes
    }
    moments = {
        process.pid: kernel_waits.read_kernel_state(
            process.pid, process.start_ticks, holders, training[process.pid]
        )
        for process in job.processes
    }
    workers = {
        process.pid: process
        for process in job.processes
        if process.role == RANK and process.name == _RAY_WORKER
    }
    rests = measure_idle_seconds(
        process.pid
        for process in job.processes
        if process.role in (RANK, LOADER) and process.pid not in workers
    )
    readings: list[Reading] = []
    if stacks:
        roles = (RANK, LOADER) if loaders else (RANK,)
        whose = [
            process
            for process in job.processes
            if process.role in roles and _runs(moments[process.pid])
        ]
        whose.sort(key=lambda process: roles.index(process.role))
        readings = _read_all(whose[:MOST_STACKS], frozenset(native), end, aids or {})
    read_stacks = [
        put_training_thread_first(stack) if stack["pid"] in workers else stack
        for reading in readings
        for stack in reading.stacks
    ]
    for pid, worker in workers.items():
        if training[pid] is None and _runs(moments[pid]):
            training[pid], moments[pid] = _read_worker_state(
                worker, read_stacks, moments[pid], holders
            )
    threads = {pid: thread for pid in workers if (thread := training[pid]) is not None}
    idle = measure_idle_seconds(threads.values())
    rests.update({pid: idle[thread] for pid, thread in threads.items() if thread in idle})
    return {
        "at": at,
        "launcher": job.launcher,
        "world_size": job.world_size,
        "processes": [
            {**_process(process, moments[process.pid]), "rested": rests.get(process.pid)}
            for process in job.processes
        ],
        "stacks": read_stacks,
        "loops": _loops_around(job, read_stacks),
        "missing": list(job.missing),
        "apart": job.apart,
        "untold": [
            asdict(source)
            for source in (*job.unread, *(u for reading in readings for u in reading.unread))
        ],
    }


def _read_worker_state(
    worker: JobProcess, stacks: Sequence[Json], state: KernelState, holders: Holders
) -> tuple[int | None, KernelState]:
    """The training thread of a worker of Ray Train in which the probe has not named it, as its
    stack shows it, and that thread's state. `state`: of its main thread, which only serves Ray."""
    stack = next((stack for stack in stacks if stack["pid"] == worker.pid), None)
    if stack is not None:
        training = _find_training_stack(stack)
        if training is None:
            return None, state
        if (thread := training["id"]) is not None:
            return thread, kernel_waits.read_kernel_state(
                worker.pid, worker.start_ticks, holders, thread
            )
    return None, replace(state, main_cpu_seconds=None, wchan=None, syscall=None)


def _loops_around(job: RunningJob, stacks: Sequence[Json]) -> list[list[Any]]:
    """The loops around the ranks' lines, by one process for each file."""
    ranks = {process.pid for process in job.processes if process.role == RANK}
    reader_of: dict[str, int] = {}
    lines: dict[int, set[tuple[str, int]]] = {}
    for pid, calls in calls_of(stacks).items():
        for file, line in calls if pid in ranks else ():
            lines.setdefault(reader_of.setdefault(file, pid), set()).add((file, line))
    return [loop for pid, calls in lines.items() for loop in loops_around(pid, calls)]


def _runs(moment: KernelState) -> bool:
    return moment.state is not None and moment.state not in "ZXx"


def _read_all(
    whose: Iterable[JobProcess], native: frozenset[int], end: float, aids: Mapping[int, Aid]
) -> list[Reading]:
    def read(found_process: JobProcess) -> Reading:
        aid = aids.get(found_process.pid)
        wanted = found_process.pid in native
        return stack_reader.read_stacks(
            found_process.pid, end, native=wanted, aid=aid, started=found_process.start_ticks
        )

    pyspy_stacks.find_pyspy()  # here: sysconfig is not safe in several threads before Python 3.12
    with ThreadPoolExecutor(_READERS, "stacks") as readers:
        return list(readers.map(read, whose))


def _process(process: JobProcess, now: KernelState) -> Json:
    return {
        "pid": process.pid,
        "parent": process.parent,
        "role": process.role,
        "state": now.state,
        "wait_status": processes.read_wait_status(process.pid, process.start_ticks),
        "rank": process.rank,
        "local_rank": process.local_rank,
        "world_size": process.world_size,
        "name": process.name,
        "command": [word[:MOST_TEXT] for word in process.command[:MOST_WORDS]],
        "start_ticks": process.start_ticks,
        "cpu_seconds": now.cpu_seconds,
        "main_cpu_seconds": now.main_cpu_seconds,
        "wchan": now.wchan,
        "syscall": now.syscall,
        "container": process.container,
        "user": process.user,
        "on_device": process.on_device,
    }
