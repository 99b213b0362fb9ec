"""Runs `tests/jobs/failing_training.py`, also where memory or disks really run out."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import cgroups

from mgpu_doctor.case.recording_case import load_recording
from mgpu_doctor.diagnosis import diagnose
from mgpu_doctor.findings import Diagnosis
from tests.support.jobs import JOBS, Launcher, plain, run

SCRIPT = JOBS / "failing_training.py"
MIB = 1 << 20


@dataclass(frozen=True)
class FailedRun:
    """A failed job. `log`: the file of its console output; `code`: its exit code."""

    recording: Path
    log: Path
    code: int

    @property
    def diagnosis(self) -> Diagnosis:
        return diagnose(load_recording(self.recording))


def line_of(mark: str) -> int:
    """The number of the script's line that ends in `# dies: …, mark, …`."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    marks = [line.partition("# dies: ")[2].split(", ") for line in lines]
    (number,) = (at for at, names in enumerate(marks, start=1) if mark in names)
    return number


def spawn_command(script: str, *options: str) -> list[str]:
    """The command for a script of tests/jobs that starts its two ranks itself by mp.spawn."""
    return [sys.executable, str(JOBS / script), *options, "--port", str(free_port())]


def run_failing(
    how: str,
    folder: Path,
    *options: str,
    launcher: Launcher = plain,
    before: Sequence[str] = (),
) -> FailedRun:
    """Runs the script in two ranks under observation until it fails in the way `how`. `folder`: for
    the recording; `before`: words before the whole command."""
    recording = folder / "recording"
    job = launcher(SCRIPT.name, how, *options)
    doctor = [sys.executable, "-m", "mgpu_doctor", "run", "-q", "--dir", str(recording), "--"]
    ended = run([*before, *doctor, *job])
    log = folder / "train.log"
    log.write_text(ended.out + ended.err)
    return FailedRun(recording, log, ended.code)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@contextmanager
def small_file_system(folder: Path) -> Iterator[Path | None]:
    """Mounts a file system of 4 MiB; None if this machine does not allow mounting."""
    place = folder / "small"
    place.mkdir()
    if not _succeeds(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)]):
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def in_small_shm() -> list[str] | None:
    """The words that give a command a /dev/shm of 8 MiB; None if this machine does not allow it."""
    mount = 'mount -t tmpfs -o size=8m none /dev/shm && exec "$@"'
    before = ["unshare", "-m", "sh", "-c", mount, "sh"]
    return before if _succeeds([*before, "true"]) else None


def _succeeds(command: Sequence[str]) -> bool:
    known = shutil.which(command[0]) is not None
    return known and subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """Makes a control group with this memory limit in bytes; None if that is not allowed."""
    known = next(iter(cgroups.find_memory_groups("self").values()), None)
    group = known[1] / f"mgpu-doctor-test-{free_port()}" if known is not None else None
    if known is None or group is None or not _make_group(group, known[0], limit):
        yield None
        return
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Kills all processes in the group and removes it; dead processes leave it after a moment."""
    deadline = time.monotonic() + 10
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _make_group(group: Path, version: int, limit: int) -> bool:
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    try:
        group.mkdir()
        (group / name).write_text(str(limit))
        (group / "cgroup.procs").read_text()
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return False
    return True
