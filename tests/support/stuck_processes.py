"""Starts small Python processes that really block: on a lock, in a system call, in C code, …"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.running_jobs import RANK, JobProcess, RunningJob
from mgpu_probes.outside.stacks import kernel_waits

from tests.support.jobs import until

_WAYS = {
    "lock": "lock = threading.Lock(); lock.acquire(); ready(); lock.acquire()",
    "sleep": "ready(); ctypes.CDLL(None).sleep(600)",
    "gil": "ready(); ctypes.PyDLL(None).sleep(600)",
    "spin": "ready()\n    while True: pass",
    "works": "ready()\n    while True: sinks_and_rises(20)",
    "pipe": "ready(); sys.stdin.buffer.raw.read(1)",
    "itself": "ready(); os.read(int(sys.argv[2]), 1)",
    "full": "ready()\n    while True: os.write(int(sys.argv[2]), bytes(65536))",
    "flock": "import fcntl; file = open(sys.argv[2]); ready(); fcntl.flock(file, fcntl.LOCK_EX)",
    "wait": "child = subprocess.Popen([sys.executable, '-c', 'input()']); ready(); child.wait()",
    "thread": (
        "other = threading.Thread(target=waits_for_ever, name='ödd \\x1b[31m<b>', daemon=True)\n"
        "    other.start(); inside.wait(); ready(); other.join()"
    ),
    "deep": "sys.setrecursionlimit(9000)\n    sinks(int(sys.argv[2]))",
    "faulthandler": (
        "import faulthandler; file = open(sys.argv[2], 'w')\n"
        "    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)\n"
        "    threading.Thread(target=waits_for_ever, daemon=True).start(); inside.wait()\n"
        "    mutex = bytes(64); lock = ctypes.PyDLL(None).pthread_mutex_lock\n"
        "    ready(); lock(mutex); lock(mutex)"  # for ever, with Python's lock held
    ),
}
_SCRIPT = """\
import ctypes, os, queue, signal, subprocess, sys, threading, time

PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)  # where Yama lets only parents trace

def ready():
    print("ready", flush=True)

inside = threading.Event()

def waits_for_ever():
    inside.set()
    queue.Queue().get()

def sinks(deeper):
    if deeper:
        return sinks(deeper - 1)
    ready()
    time.sleep(600)

def sinks_and_rises(deeper):
    return sum(sinks_and_rises(deeper - 1) for _ in range(1)) if deeper else 1

def stuck_here():
    {how}

stuck_here()
"""


@contextmanager
def stuck(
    how: str, *options: str, python: str = sys.executable, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that blocks in `stuck_here` in one of the `_WAYS`; killed at the end."""
    with subprocess.Popen(
        [python, "-c", _SCRIPT.format(how=_WAYS[how]), how, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=pass_fds,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def wait_for_call(pid: int, call: str) -> None:
    """Waits until the process's main thread is in this system call."""
    until(lambda: (kernel_waits.read_kernel_state(pid).syscall or "").split()[:1] == [call])


@contextmanager
def all_stuck(*ways: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One process for each of these ways."""
    with ExitStack() as stack:
        yield [stack.enter_context(stuck(how)) for how in ways]


def job_of(*pids: int, role: str = RANK) -> RunningJob:
    """A job of these processes; the first is rank 0."""
    job_processes = []
    for rank, pid in enumerate(pids):
        process = processes.read_process(pid)
        assert process is not None
        job_processes.append(
            JobProcess(
                pid=pid,
                parent=process.parent,
                role=role,
                state=process.state,
                rank=rank,
                local_rank=rank,
                world_size=len(pids),
                name=process.name,
                command=("python",),
                start_ticks=process.start_ticks,
                cpu_seconds=0.0,
                uid=None,
                user=None,
                container=None,
                inner_pid=None,
            )
        )
    return RunningJob(
        launcher=None, launcher_pid=None, world_size=len(pids), processes=tuple(job_processes)
    )
