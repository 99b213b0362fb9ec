"""Finds recordings whose jobs still run on this machine, and those still being written.

Live black boxes may be outside of the recording, which then names their folder. A recording may
come from somebody else and is not trusted: the folder is read only if only this user can access it
and it contains the recording's key, which others cannot read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.untrusted_files import entries_below, open_below, within_budget

from mgpu_doctor.recording.home import all_remembered, runs
from mgpu_doctor.recording.layout import BOXES, END, HOSTS, INFO, TASKS

NEWEST = 256
"""The most folders checked, newest first by name: a running job is among the newest."""
MOST_HOSTS, MOST_TASKS, MOST_BOXES = 8192, 1024, 32_768
MOST_BYTES = 1 << 20
"""The most bytes read of a file."""

PREFIX = "mgpu-doctor-boxes-"
KEY_FILE = "key"
_KEY_BYTES = 16
_LONGEST = 200


def living(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Returns the recordings of jobs whose first process is alive, newest start first: those in the
    doctor's home, and those that `--dir` put elsewhere."""
    folders = all_remembered(environment)
    with contextlib.suppress(OSError):
        kept = sorted(os.listdir(runs(environment)), reverse=True)[:NEWEST]
        folders |= {name: runs(environment) / name for name in kept}
    return [folders[name] for name in sorted(folders, reverse=True) if is_living(folders[name])]


def is_living(recording: Path) -> bool:
    """Returns whether the first process of this recording's job runs here. False if it is not a
    recording."""
    ends = f"{recording}/{END}", f"{recording}/{HOSTS}/{os.uname().nodename}/{END}"
    return not any(map(os.path.exists, ends)) and _runs_here(_info(recording), "job")


def is_written(recording: Path) -> bool:
    """Returns whether a process on this machine still writes into this recording: the job's first
    process, the doctor that records it, or a process with a black box in it. A process is
    identified by its pid, its start and the machine's boot."""
    info = _info(recording)
    if is_living(recording) or _runs_here(info, "doctor"):
        return True
    return any(_writes(root, path) for root, path in _boxes(recording, info))


def is_recorded_here(info: Mapping[str, Any]) -> bool:
    """Returns whether the doctor of a recording, or of a part of one, runs here, and the job's
    first process too: it watches the job until that ends. `info`: what `recording.json` says."""
    return _runs_here(info, "job") and _runs_here(info, "doctor")


def _runs_here(info: Mapping[str, Any], who: str) -> bool:
    """Returns whether a process of the recording runs here. `who`: `job` (its first process) or
    `doctor`."""
    pid, ticks, boot = info.get(f"{who}_pid"), info.get(f"{who}_start_ticks"), info.get("boot_id")
    if type(pid) is not int or not 0 < pid < 1 << 31 or info.get("host") != os.uname().nodename:
        return False
    if boot is not None and boot != processes.boot_id():
        return False
    if who == "doctor" and not isinstance(ticks, int):
        return False  # old recordings have no start time, and a pid alone proves nothing
    return processes.is_alive(pid, ticks if isinstance(ticks, int) else None)


def _boxes(recording: Path, info: Mapping[str, Any]) -> Iterator[tuple[Path, Path]]:
    """Yields the black boxes whose process may run here, judged by their names: the folder that
    must contain them, and their path."""
    from mgpu_probes.inprocess.layout import BOX_SUFFIX  # not needed to find living jobs

    hosts = entries_below(recording, recording / HOSTS)[:MOST_HOSTS]
    folders = [(recording, host.path / BOXES) for host in hosts]
    folders += [(outside, outside) for outside in find_outside((info, *read_tasks(recording)))]
    for root, folder in folders:
        for entry in entries_below(root, folder)[:MOST_BOXES]:
            _, pid, *_ = (*entry.name.split("."), "", "")  # HOST.PID.ATTEMPT.box
            may_run = pid.isdecimal() and os.path.exists(f"/proc/{pid[:10]}")
            if entry.name.endswith(BOX_SUFFIX) and may_run:
                yield root, entry.path


def _writes(root: Path, path: Path) -> bool:
    """Returns whether the process that made this box runs here."""
    from mgpu_probes.inprocess.layout import HEADER_SIZE

    from mgpu_doctor.recording import boxheader  # not needed on a machine without a job

    try:
        descriptor = open_below(root, path)
    except OSError:
        return False
    try:
        header = boxheader.read_at(descriptor, 0, HEADER_SIZE)
        boxheader.geometry(header)
    except (OSError, boxheader.BadBox):
        return False
    finally:
        os.close(descriptor)
    writer = boxheader.identity(header, trusted=False)
    here = writer.host == os.uname().nodename and writer.boot_id in (None, processes.boot_id())
    return here and 0 < writer.pid < 1 << 31 and processes.is_alive(writer.pid, writer.start_ticks)


def _info(recording: Path) -> dict[str, Any]:
    """What `recording.json` says: that of this host's part, where several nodes write into one
    recording."""
    own = read_object(recording, f"{HOSTS}/{os.uname().nodename}/{INFO}")
    return own or read_object(recording, INFO) or {}


def read_object(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns the object in a file of a recording; empty if it is invalid, or over the budget of
    this command; None if there is no such regular file. No link is followed."""
    try:
        descriptor = open_below(folder, folder / name)
    except PermissionError:
        return {}
    except OSError:
        return None
    import json  # not needed on a machine without a job

    try:
        with open(descriptor, "rb") as file, within_budget() as budget:
            raw = file.read(MOST_BYTES)
            budget.take_json(raw)
            content = json.loads(raw)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def list_tasks(recording: Path) -> list[str]:
    """The parts of the further tasks on this host that write into a recording, as paths in it."""
    place = f"{HOSTS}/{os.uname().nodename}/{TASKS}"
    tasks = entries_below(recording, recording / place)[:MOST_TASKS]
    return [f"{place}/{task.name}" for task in tasks if task.is_folder]


def read_tasks(recording: Path) -> list[dict[str, Any]]:
    """What `recording.json` says of the further tasks on this host that write into a recording."""
    return [read_object(recording, f"{task}/{INFO}") or {} for task in list_tasks(recording)]


def list_task_recorders(recording: Path) -> list[int]:
    """Pids of the mgpu-doctor of further tasks on this host that run."""
    running = [info for info in read_tasks(recording) if _runs_here(info, "doctor")]
    return [info["doctor_pid"] for info in running]


def find_task_process(recording: Path, task: str) -> int | None:
    """The pid of the first process of a task (`list_tasks`); None: it is unknown, or does not
    run."""
    info = read_object(recording, f"{task}/{INFO}") or {}
    return info["job_pid"] if _runs_here(info, "job") else None


def find_outside(infos: Iterable[Mapping[str, object]]) -> list[Path]:
    """The folders of live boxes that lie outside of a recording. `infos`: what it has in its
    `recording.json`, and in those of its parts on this host."""
    named = ((info.get("boxes"), info.get("boxes_key")) for info in infos)
    return [
        Path(folder)
        for folder, key in named
        if isinstance(folder, str) and isinstance(key, str) and belongs(folder, key)
    ]


def make_outside(place: Path) -> tuple[Path, str]:
    """Makes a private folder in `place`; returns its path and key. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    key = os.urandom(_KEY_BYTES).hex()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(folder / KEY_FILE, flags, 0o600), "w", encoding="ascii") as file:
        file.write(key)
    return folder, key


def belongs(folder: str | None, key: str | None) -> bool:
    """Returns whether `folder` is the live folder of the recording with this key."""
    if not folder or not key or "\0" in folder or len(key) != 2 * _KEY_BYTES:
        return False
    if not os.path.isabs(folder) or not os.path.basename(folder).startswith(PREFIX):
        return False
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(place)
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return private and _key_in(place) == key.encode("utf-8", "replace")
    finally:
        os.close(place)


def _key_in(folder: int) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(KEY_FILE, flags, dir_fd=folder), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            return file.read(_LONGEST)
    except OSError:
        return b""
