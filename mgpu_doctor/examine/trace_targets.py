"""Which ranks of a running job can be asked for traces of their steps, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.flight.live_recorders import read_environment
from mgpu_probes.outside.jobs import FoundJob, FoundProcess
from mgpu_probes.outside.traces import kineto_daemon, probe_tracing
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest

from mgpu_doctor.examine.live_targets import Target, of_pid, of_recording
from mgpu_doctor.examine.subjects import Pid, Recording, UnknownSubject, recognise

BOXES = "MGPU_DOCTOR_BOXES"
MOST_MAPS = 4 << 20
NEXT_TIME = "start it with `mgpu-doctor run -- COMMAND`, or with KINETO_USE_DAEMON=1 set"


@dataclass(frozen=True, slots=True)
class Way:
    """How the ranks of a job can be asked: by our probe's sockets, else by Kineto's daemon."""

    sockets: Mapping[int, str]
    """pid -> where it listens."""
    daemon: tuple[FoundProcess, ...] = ()
    """Ranks whose Kineto looks for a daemon."""
    socket_folder: str | None = None
    """Where they look; None: in the abstract namespace."""


def way_to(word: str) -> Way:
    """Raises UnknownSubject: its sentence says why the job cannot be traced, and what to do."""
    job = _job(word)
    ranks = [rank for rank in job.ranks if rank.state not in "ZX"]
    if not ranks:
        raise UnknownSubject("no rank of this job runs any more.")
    foreign = next((one for one in ranks if one.uid not in (None, os.geteuid())), None)
    if foreign is not None:
        who = foreign.user or "another user"
        raise UnknownSubject(f"the job belongs to {who}: run `mgpu-doctor trace` as {who}.")
    given = {one.pid: read_environment(one.pid, processes.PROC) for one in ranks}
    found = {pid: _socket(pid, known.get(BOXES)) for pid, known in given.items()}
    sockets = {pid: str(path) for pid, path in found.items() if path is not None}
    if sockets:
        return Way(sockets)
    listening = tuple(one for one in ranks if given[one.pid].get("KINETO_USE_DAEMON"))
    if listening:
        return Way({}, listening, given[listening[0].pid].get("KINETO_IPC_SOCKET_DIR"))
    raise UnknownSubject(_why_not(ranks, given))


def take(way: Way, wanted: TraceRequest, folder: Path, tell: Tell) -> list[TakenTrace]:
    """Puts one file a rank into `folder`. Raises UnknownSubject."""
    if way.sockets:
        return probe_tracing.trace_ranks(way.sockets, wanted, folder, tell)
    try:
        return kineto_daemon.trace_by_kineto(
            way.daemon, way.socket_folder, wanted.seconds or kineto_daemon.SECONDS, folder, tell
        )
    except kineto_daemon.OccupiedError as error:
        raise UnknownSubject(f"{error}.") from None


def _job(word: str) -> FoundJob:
    subject = recognise(word)
    if isinstance(subject, Pid):
        target: Target | str = of_pid(subject.pid)
    elif isinstance(subject, Recording):
        target = of_recording(subject.path)
    else:
        raise UnknownSubject(
            f"{word} is no running job: name a process id of one, or its recording (`latest`)."
        )
    if isinstance(target, str):
        raise UnknownSubject(f"{target.rstrip('.')}.")
    if target.job is None:
        raise UnknownSubject(
            f"the job of {word} does not run here any more: only running ones can be traced, and "
            f"`mgpu-doctor diagnose {word}` examines what this one left."
        )
    return target.job


def _socket(pid: int, boxes: str | None) -> Path | None:
    """Where our probe in this process listens."""
    return next(Path(boxes).glob(f"*.{pid}.*.sock"), None) if boxes else None


def _why_not(ranks: list[FoundProcess], given: Mapping[int, Mapping[str, str]]) -> str:
    maps = "".join(_maps(rank.pid) for rank in ranks[:4])
    if "libtensorflow" in maps and "libtorch" not in maps:
        return (
            "this is a TensorFlow job, and only PyTorch's can be traced from outside: let it call "
            "tf.profiler.experimental.start(FOLDER) and stop(), then `mgpu-doctor diagnose FOLDER`."
        )
    if maps and "libtorch" not in maps:
        return "no rank of this job has loaded PyTorch (yet): only its jobs can be traced."
    if any(known.get(BOXES) for known in given.values()):
        return (
            "the ranks of this job do not listen yet: they do once they have joined their group, "
            "or, alone, have taken 20 steps; try again."
        )
    return f"this job was not prepared to be traced: next time, {NEXT_TIME}."


def _maps(pid: int) -> str:
    """Empty where it cannot be read."""
    try:
        with open(processes.PROC / str(pid) / "maps", "rb") as file:
            return file.read(MOST_MAPS).decode("utf-8", "replace")
    except OSError:
        return ""
