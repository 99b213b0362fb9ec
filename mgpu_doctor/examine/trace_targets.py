"""Traces the steps of a running job: which ranks can be traced, and by which route."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.flight import timed_collectives
from mgpu_probes.outside.flight.live_recorders import read_environment
from mgpu_probes.outside.jobs import JobProcess, RunningJob
from mgpu_probes.outside.stacks.rank_replies import Ranks
from mgpu_probes.outside.traces import kineto_daemon, probe_tracing
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, TraceRequest

from mgpu_doctor.case.model import Unexamined
from mgpu_doctor.cluster.host_fleet import Fleet
from mgpu_doctor.cluster.host_ranks import HostRanks
from mgpu_doctor.examine.host_cases import SECONDS_TO_ANSWER, explain_nothing, list_host_gaps
from mgpu_doctor.examine.live_targets import Target, target_of_pid, target_of_recording
from mgpu_doctor.examine.subjects import Pid, Recording, UnknownSubject, recognize

BOXES = "MGPU_DOCTOR_BOXES"
MAX_MAPS_BYTES = 4 << 20
NEXT_TIME = "start it with `mgpu-doctor run -- COMMAND`, or with KINETO_USE_DAEMON=1 set"


@dataclass(frozen=True, slots=True)
class TraceRoute:
    """How to request traces from ranks: by their probes, else as a daemon of Kineto."""

    ranks: probe_tracing.TracedRanks | None
    """The ranks that have a probe."""
    daemon: tuple[JobProcess, ...] = ()
    """Ranks whose Kineto connects to a daemon."""
    socket_folder: str | None = None
    """Folder of the daemon's socket; None: the abstract namespace."""
    recording: Path | None = None
    """Where a job on several hosts is gathered; its traces belong there."""
    unseen: tuple[Unexamined, ...] = ()
    """Hosts whose ranks are not traced."""


def find_trace_route(word: str) -> TraceRoute:
    """The route to the ranks of the job that `word` names. Raises UnknownSubject with a sentence
    that says why the job cannot be traced, and what to do."""
    job = _find_job(word)
    ranks = [rank for rank in job.ranks if rank.state not in "ZX"]
    if not ranks:
        raise UnknownSubject("all ranks of this job have ended.")
    foreign = next((rank for rank in ranks if rank.uid not in (None, os.geteuid())), None)
    if foreign is not None:
        owner = foreign.user or "another user"
        raise UnknownSubject(f"the job belongs to {owner}: run `mgpu-doctor trace` as {owner}.")
    environments = {rank.pid: read_environment(rank.pid, processes.PROC) for rank in ranks}
    paths = {
        pid: _find_socket(pid, environment.get(BOXES)) for pid, environment in environments.items()
    }
    sockets = {pid: str(path) for pid, path in paths.items() if path is not None}
    if sockets:
        return TraceRoute(probe_tracing.LocalRanks(sockets))
    listening = tuple(rank for rank in ranks if environments[rank.pid].get("KINETO_USE_DAEMON"))
    if listening:
        return TraceRoute(
            None, listening, environments[listening[0].pid].get("KINETO_IPC_SOCKET_DIR")
        )
    raise UnknownSubject(_explain_no_route(ranks, environments))


def find_host_route(fleet: Fleet, tell: Tell) -> TraceRoute:
    """The route to the ranks of the only job on these hosts. Raises UnknownSubject."""
    tell("reading the hosts")
    fleet.wait_until_read(SECONDS_TO_ANSWER)
    states = fleet.states()
    gaps = list_host_gaps(states)
    running = [job for job in fleet.jobs if not job.over]
    if not running:
        raise UnknownSubject(explain_nothing(states, gaps))
    if len(running) > 1:
        hosts = "; ".join(", ".join(job.hosts) for job in running)
        raise UnknownSubject(
            f"{len(running)} jobs run there (on {hosts}), and one is traced at a time: name hosts "
            "of one job only, or run `mgpu-doctor trace PID` on its host."
        )
    ranks = HostRanks(fleet, running[0])
    if not ranks.processes:
        raise UnknownSubject("all ranks of this job have ended.")
    return TraceRoute(ranks, recording=running[0].folder, unseen=gaps)


def take_traces(
    route: TraceRoute, wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """Write one trace file per rank to `folder`. Raises UnknownSubject."""
    if route.ranks is not None:
        return probe_tracing.trace_ranks(route.ranks, wanted, folder, tell)
    try:
        return kineto_daemon.trace_by_kineto(
            route.daemon, route.socket_folder, wanted.seconds or kineto_daemon.SECONDS, folder, tell
        )
    except kineto_daemon.OccupiedError as error:
        raise UnknownSubject(f"{error}.") from None


def check_collective_timing(route: TraceRoute) -> Ranks:
    """The ranks, which can time their collectives. Raises UnknownSubject with a sentence if they
    cannot."""
    if route.ranks is None:
        raise UnknownSubject(
            "collectives are timed by the probe, and this job has none: next time, start it with "
            "`mgpu-doctor run -- COMMAND`."
        )
    try:
        timed_collectives.check_timing(route.ranks)
    except timed_collectives.NotTimedError as error:
        raise UnknownSubject(f"collectives cannot be timed: {error}.") from None
    return route.ranks


def take_collective_times(
    ranks: Ranks, wanted: TraceRequest, folder: Path, tell: Tell
) -> list[TakenTrace]:
    """Write one flight-recorder dump with timed collectives per rank to `folder`. Raises
    UnknownSubject."""
    try:
        return timed_collectives.time_collectives(ranks, wanted, folder, tell)
    except timed_collectives.NotTimedError as error:
        raise UnknownSubject(f"collectives cannot be timed: {error}.") from None


def _find_job(word: str) -> RunningJob:
    subject = recognize(word)
    if isinstance(subject, Pid):
        target: Target | str = target_of_pid(subject.pid)
    elif isinstance(subject, Recording):
        target = target_of_recording(subject.path)
    else:
        raise UnknownSubject(
            f"{word} is not a running job: name the id of one of its processes, or its recording "
            "(such as `latest`)."
        )
    if isinstance(target, str):
        raise UnknownSubject(f"{target.rstrip('.')}.")
    if target.job is None:
        raise UnknownSubject(
            f"the job of {word} is not running here, and only running jobs can be traced; "
            f"`mgpu-doctor diagnose {word}` examines its recording."
        )
    return target.job


def _find_socket(pid: int, boxes: str | None) -> Path | None:
    """The socket of the probe in this process; None if there is none."""
    return next(Path(boxes).glob(f"*.{pid}.*.sock"), None) if boxes else None


def _explain_no_route(
    ranks: list[JobProcess], environments: Mapping[int, Mapping[str, str]]
) -> str:
    maps = "".join(_read_maps(rank.pid) for rank in ranks[:4])
    if "libtensorflow" in maps and "libtorch" not in maps:
        return (
            "this is a TensorFlow job, and only PyTorch jobs can be traced from outside: call "
            "tf.profiler.experimental.start(FOLDER) and stop() in it, then run "
            "`mgpu-doctor diagnose FOLDER`."
        )
    if maps and "libtorch" not in maps:
        return "no rank of this job has loaded PyTorch yet, and only PyTorch jobs can be traced."
    if any(environment.get(BOXES) for environment in environments.values()):
        return (
            "the ranks of this job cannot be traced yet: they can when they have joined their "
            "process group or, in a job of one rank, after 20 steps. Try again."
        )
    return f"this job was not started for tracing: next time, {NEXT_TIME}."


def _read_maps(pid: int) -> str:
    """The memory map of a process as text; empty if it cannot be read."""
    try:
        with open(processes.PROC / str(pid) / "maps", "rb") as file:
            return file.read(MAX_MAPS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
