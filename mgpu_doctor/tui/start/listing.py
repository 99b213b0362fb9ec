"""The training jobs of this machine as a list to choose from: cheap enough to be made often."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.jobs import FoundJob
from mgpu_probes.outside.stacks import permission

from mgpu_doctor.case.files import read_object
from mgpu_doctor.case.gpu import DeviceSample
from mgpu_doctor.recording.layout import INFO
from mgpu_doctor.recording.living import living

MOST_LISTED = 64
MOST_MAPS = 1 << 20
"""Bytes of proc_pid_maps(5) in which a framework's library is looked for."""
MOST_ABOVE = 16
TICKS = os.sysconf("SC_CLK_TCK")
LIBRARIES = {b"/libtorch": "torch", b"tensorflow": "tensorflow", b"/libjax": "jax"}
MOST_KNOWN = 512
_FRAMEWORKS: dict[tuple[int, int], str] = {}
"""(pid, start ticks) of a rank -> what it has loaded."""
NOT_OBSERVED = (
    "It was not started under observation: its steps and its output cannot be seen, its processes "
    "and their stacks can. Start it with `mgpu-doctor run -- COMMAND` next time."
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A job that runs here. `recording`: where it is observed; None: it is not."""

    pid: int
    command: str
    recording: Path | None = None
    ranks: int | None = None
    """Ranks seen on this host; None: not known yet."""
    world_size: int | None = None
    framework: str | None = None
    launcher: str | None = None
    user: str | None = None
    container: str | None = None
    age: float | None = None
    """Seconds since it started."""
    pids: frozenset[int] = frozenset()
    unseen: tuple[str, ...] = ()
    """What cannot be seen of it, why, and what to do: a sentence each."""

    @property
    def subject(self) -> str:
        """What `mgpu-doctor diagnose` calls it."""
        return str(self.recording) if self.recording is not None else str(self.pid)


def jobs_here() -> tuple[Listed, ...]:
    """Every training job of this machine, those under observation first. One pass over /proc."""
    found = list(jobs.find_all())
    listed = []
    for recording in living():
        info = _info(recording)
        pid = info.get("job_pid")
        if isinstance(pid, int):
            own = next((one for one in found if _belongs(one, pid)), None)
            if own is not None:
                found.remove(own)
            listed.append(_recorded(recording, info, pid, own))
    listed += [_outside(job) for job in found]
    return tuple(listed[:MOST_LISTED])


def gpus_of(job: Listed, devices: DeviceSample | None) -> str:
    """The numbers of the GPUs on which its processes are; empty: none, or not known."""
    known = devices.devices if devices is not None else ()
    return ",".join(str(one.index) for one in known if job.pids.intersection(one.pids))


def _belongs(job: FoundJob, pid: int) -> bool:
    """Whether the process is of the job, or stands above it (a shell script, `uv run`)."""
    if any(one.pid == pid for one in job.processes):
        return True
    above = job.processes[0].parent if job.processes else 0
    for _ in range(MOST_ABOVE):
        if above == pid:
            return True
        found = processes.read(above) if above > 1 else None
        if found is None:
            return False
        above = found.parent
    return False


def _recorded(recording: Path, info: dict[str, object], pid: int, found: FoundJob | None) -> Listed:
    words, started = info.get("command"), info.get("started")
    command = [str(word) for word in words] if isinstance(words, list) else []
    own = os.geteuid()
    return Listed(
        pid=pid,
        command=shlex.join(command),
        recording=recording,
        ranks=len(found.ranks) if found is not None else None,
        world_size=found.world_size if found is not None else None,
        framework=_framework(found) if found is not None else None,
        launcher=found.launcher if found is not None else None,
        user=permission.user(own),
        container=_container(found) if found is not None else None,
        age=max(0.0, time.time() - started) if isinstance(started, (int, float)) else None,
        pids=_pids(found) if found is not None else frozenset(),
    )


def _outside(job: FoundJob) -> Listed:
    first = next((one for one in job.processes if one.pid == job.launcher_pid), job.processes[0])
    oldest = min(one.start_ticks for one in job.processes)
    return Listed(
        pid=first.pid,
        command=shlex.join(first.command) or first.name,
        ranks=len(job.ranks),
        world_size=job.world_size,
        framework=_framework(job),
        launcher=job.launcher,
        user=first.user or (permission.user(first.uid) if first.uid is not None else None),
        container=_container(job),
        age=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - oldest / TICKS),
        pids=_pids(job),
        unseen=(*_untold(job), NOT_OBSERVED),
    )


def _untold(job: FoundJob) -> tuple[str, ...]:
    """Each reason once: most hold for every rank."""
    sentences = (f"{one.source}: {one.reason}; {one.remedy}." for one in job.untold)
    return tuple(dict.fromkeys(sentences))


def _pids(job: FoundJob) -> frozenset[int]:
    """As this host numbers them, which is how NVML does."""
    return frozenset(one.pid for one in job.processes)


def _container(job: FoundJob) -> str | None:
    return next((one.container for one in job.processes if one.container is not None), None)


def _framework(job: FoundJob) -> str | None:
    """By the libraries that its first rank has loaded."""
    key = next(((one.pid, one.start_ticks) for one in job.ranks), None)
    if key is None:
        return None
    if key not in _FRAMEWORKS and (found := _mapped(key[0])) is not None:
        if len(_FRAMEWORKS) >= MOST_KNOWN:
            _FRAMEWORKS.clear()
        _FRAMEWORKS[key] = found  # what is loaded stays loaded; what is not yet is asked again
    return _FRAMEWORKS.get(key)


def _mapped(pid: int) -> str | None:
    seen = b""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            while len(seen) < MOST_MAPS and (part := file.read(1 << 16)):
                seen += part
    except OSError:
        return None
    return next((name for library, name in LIBRARIES.items() if library in seen), None)


def _info(recording: Path) -> dict[str, object]:
    try:
        return read_object(recording / INFO, root=recording)
    except (OSError, ValueError):
        return {}
