"""Runs real training jobs for tests: one at a time on this machine, and none is left behind."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

JOBS = Path(__file__).parents[1] / "jobs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def torchrun(script: str, *options: str, ranks: int = 2) -> list[str]:
    """The command that starts one of the scripts in tests/jobs."""
    return [*TORCHRUN, str(ranks), str(JOBS / script), *options]


@contextmanager
def alone() -> Iterator[None]:
    """Holds the machine: training jobs that compete for cores would spoil each other's timing."""
    with (Path(tempfile.gettempdir()) / "mgpu-jobs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The running command, in a process group of its own, which is killed at the end."""
    with (
        alone(),
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            kill_session(process.pid)


def run(command: Sequence[str], seconds: float = 120.0) -> Ended:
    """Runs the command to its end; raises subprocess.TimeoutExpired where it takes longer."""
    with started(command) as process:
        out, err = process.communicate(timeout=seconds)
        return Ended(process.returncode, out, err)


def kill_session(leader: int) -> None:
    """Kills what is left of a session: torchrun gives each rank a process group of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _session(int(entry.name)) == leader:
            try:
                os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits for the condition; raises TimeoutError where it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("what the test waits for did not happen")
        time.sleep(0.02)
