"""The training jobs of this host with their black boxes, and which of their ranks have ended.

A rank's box is found where the rank has mapped it (proc_pid_maps(5)). Boxes beside it whose
processes do not run belong to ranks of the same job that have ended already."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mgpu_probes.inprocess.layout import BOX_SUFFIX
from mgpu_probes.outside import jobs, processes
from mgpu_probes.outside.jobs import JobProcess, RunningJob
from mgpu_probes.outside.node.box_stream import BoxStream, NoBox

MOST_BOXES = 1024
MOST_MAPS = 8 << 20
MOST_INFO = 1 << 20
SCAN_EVERY = 2.0
SCAN_SHARE = 0.002
"""Share of a core for finding jobs and boxes."""
MOST_WORDS, LONGEST_WORD = 64, 400
_ENDING = BOX_SUFFIX.encode()
_NO_PROCESSES = RunningJob(None, None, None, ())


@dataclass(eq=False)
class NodeBox:
    """A box of a job. `number`: what frames call it."""

    number: int
    path: str
    stream: BoxStream
    process: tuple[int, int]
    """Pid on this host and start ticks; in a container the box has another pid."""
    ended: bool = False
    """Its process has ended, and its last records were sent."""

    @property
    def socket(self) -> str:
        """The path at which its rank answers, if it does."""
        return f"{self.path.removesuffix(BOX_SUFFIX)}.sock"

    @property
    def trace(self) -> str:
        """The path to which its rank writes a trace that it was asked for."""
        return f"{self.path.removesuffix(BOX_SUFFIX)}.trace.json"


@dataclass(eq=False)
class NodeJob:
    """A job and what was found of it so far. `number`: what frames call it."""

    number: int
    running: RunningJob
    over: bool = False
    rendezvous: tuple[str, ...] = ()
    recording: str | None = None
    """The folder of its recording on this host; None: it is not recorded, or that is unknown."""
    recorded_as: str = ""
    """What that recording calls this host; empty: the recording is only this host's part of one."""
    joint: str | None = None
    """What the recordings of all nodes of the job have in common; None: it is of this host."""
    recorder: tuple[int, int | None] | None = None
    """Pid and start ticks of the mgpu-doctor that records it."""
    boxes: dict[str, NodeBox] = field(default_factory=dict)
    """Path -> box."""
    refused: dict[str, str] = field(default_factory=dict)
    """Path -> why this box cannot be sent."""
    others: set[str] = field(default_factory=set)
    """Paths of boxes in the same folder whose processes run and belong to another job."""
    watched: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Pid as boxes have it -> pid on this host and start ticks, of each rank that was found."""
    exits: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Pid -> line of exits.jsonl for each rank that was seen to end."""

    @property
    def is_recorded(self) -> bool:
        """Whether an mgpu-doctor on this host writes its exits and samples."""
        return self.recorder is not None and processes.is_alive(*self.recorder)

    def describe(self) -> dict[str, Any]:
        """The job as JSON."""
        first = next(iter(self.running.processes), None)
        return {
            "job": self.number,
            "over": self.over,
            "rendezvous": list(self.rendezvous),
            "launcher": self.running.launcher,
            "pid": self.running.launcher_pid or (first.pid if first else None),
            "world_size": self.running.world_size,
            "command": [] if first is None else list(first.command),
            "ranks": [[rank.rank, rank.pid] for rank in self.running.ranks],
            "boxes": len(self.boxes),
            "refused": sorted(set(self.refused.values()))[:4],
        }


class KnownBox(NamedTuple):
    """A box that the reader has already. `job`: equal for boxes of one job; `cursors`: of each
    ring, the sequence number of the newest record."""

    path: str
    job: str
    cursors: Mapping[str, int]


class NodeJobs:
    """Finds the jobs of this host. `known`: identity of a box -> what the reader has of it."""

    def __init__(self, known: Mapping[str, KnownBox]) -> None:
        self.jobs: list[NodeJob] = []
        self._known_boxes = known
        self._reopened = False
        self._due = 0.0
        self._boxes = 0

    @property
    def boxes(self) -> dict[int, NodeBox]:
        """Number -> box, of all jobs."""
        return {box.number: box for job in self.jobs for box in job.boxes.values()}

    def scan(self) -> None:
        """Searches for jobs and boxes if that is due."""
        began, cost = time.monotonic(), time.thread_time()
        if began < self._due:
            return
        found = jobs.find_all()
        for running in found:
            job = self._known(running)
            if job is None:
                job = NodeJob(len(self.jobs), running)
                self.jobs.append(job)
            job.running = running
            job.rendezvous = job.rendezvous or _shared_key(running.rendezvous)
            self._find_boxes(job)
        if not self._reopened:
            self._reopened = True
            self._reopen()
        took = time.thread_time() - cost
        self._due = began + max(SCAN_EVERY, took / SCAN_SHARE)

    def notice_exits(self) -> None:
        """Updates which ranks have ended, and which jobs are over."""
        for job in self.jobs:
            for pid, process in job.watched.items():
                if pid not in job.exits and not processes.is_alive(*process):
                    status = processes.read_wait_status(*process)
                    job.exits[pid] = _exit_line(pid, process[1], status)
            job.over = not any(
                processes.is_alive(process.pid, process.start_ticks)
                for process in job.running.processes
            )

    def _known(self, running: RunningJob) -> NodeJob | None:
        """The job that these processes belong to, if it was found before."""
        started = {(process.pid, process.start_ticks) for process in running.processes}
        for job in self.jobs:
            if any((one.pid, one.start_ticks) in started for one in job.running.processes):
                return job
        return None

    def _reopen(self) -> None:
        """Opens boxes of jobs that ended while no agent was here: nobody else would find them."""
        opened = {box.stream.identity for job in self.jobs for box in job.boxes.values()}
        ended: dict[str, NodeJob] = {}
        for identity, known in self._known_boxes.items():
            if identity in opened:
                continue
            job = ended.get(known.job) or NodeJob(len(self.jobs), _NO_PROCESSES, over=True)
            if self._open(job, known.path, None, identity) and known.job not in ended:
                ended[known.job] = job
                self.jobs.append(job)
                _find_recording(job, os.path.dirname(known.path))

    def _find_boxes(self, job: NodeJob) -> None:
        folders = {os.path.dirname(path) for path in job.boxes}
        with_box = {box.process[0] for box in job.boxes.values()}
        for rank in job.running.ranks:
            job.watched[rank.pid] = rank.pid, rank.start_ticks
            for path in _find_mapped_boxes(rank.pid) if rank.pid not in with_box else ():
                if self._open(job, path, rank):
                    folders.add(os.path.dirname(path))
        # In a container pids are others: whether the process of a box there runs is unknown.
        contained = any(process.inner_pid is not None for process in job.running.processes)
        for folder in sorted(folders):
            if job.recording is None:
                _find_recording(job, folder)
            for name in () if contained else _list_boxes(folder):
                path = os.path.join(folder, name)
                if path not in job.others:
                    self._open(job, path, None)

    def _open(
        self, job: NodeJob, path: str, rank: JobProcess | None, identity: str | None = None
    ) -> bool:
        """Opens a box; whether it is one of this job. `rank`: the process that has mapped it; None:
        it lies beside others. A box that is not of its process's user could be any file.
        `identity`: the only one that counts."""
        if path in job.boxes or path in job.refused or self._boxes >= MOST_BOXES:
            return path in job.boxes
        try:
            if not path.isprintable():
                raise NoBox("its path has characters that cannot be printed")
            stream = BoxStream(path)
        except (NoBox, OSError) as error:
            job.refused[path] = getattr(error, "strerror", None) or str(error)
            return False
        process = stream.pid, stream.start_ticks
        if rank is not None:
            process = rank.pid, rank.start_ticks
            if stream.status.st_uid != rank.uid:
                stream.close()
                job.refused[path] = "it belongs to another user"
                return False
        elif (processes.is_alive(*process) and stream.pid not in job.watched) or (
            identity not in (None, stream.identity)
        ):
            stream.close()
            job.others.add(path)
            return False
        if stream.identity in self._known_boxes:
            stream.resume(self._known_boxes[stream.identity].cursors)
        job.boxes[path] = NodeBox(self._boxes, path, stream, process)
        job.watched.setdefault(stream.pid, process)
        self._boxes += 1
        return True


def _shared_key(rendezvous: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a rendezvous that an elastic restart keeps: torchrun's port and the world size
    change, and its run id, if the user gave one, does not."""
    if rendezvous[:1] == ("torch",) and rendezvous[1] not in ("", "none"):
        return rendezvous[:3]
    return rendezvous


def _find_mapped_boxes(pid: int) -> list[str]:
    """The paths of the boxes that a process has mapped, as this process can open them."""
    try:
        with open(f"/proc/{pid}/maps", "rb", buffering=0) as file:
            raw = b""
            while len(raw) < MOST_MAPS and (part := file.read(1 << 16)):
                raw += part
    except OSError:
        return []
    paths = {
        os.fsdecode(words[5])
        for line in raw.split(b"\n")
        if line.endswith(_ENDING) and len(words := line.split(None, 5)) == 6
    }
    return [_reachable(pid, path) for path in sorted(paths)]


def _reachable(pid: int, path: str) -> str:
    """The path by which a file of a process in another mount namespace can be opened here."""
    inside = f"/proc/{pid}/root"
    try:
        same = os.stat(f"{inside}/").st_ino == os.stat("/").st_ino
    except OSError:
        return path
    return path if same and os.path.exists(path) else inside + path


def _list_boxes(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(BOX_SUFFIX) and name[0] != ".")


def _find_recording(job: NodeJob, folder: str) -> None:
    """Sets the job's recording if this folder of boxes, `RECORDING/hosts/HOST/boxes`, is in one.
    Where several nodes write into a recording, `hosts/HOST` has a `recording.json` of its own."""
    part = os.path.dirname(folder)
    for recording in (part, os.path.dirname(os.path.dirname(part))):
        try:
            with open(os.path.join(recording, "recording.json"), "rb") as file:
                info = json.loads(file.read(MOST_INFO))
            pid, ticks = info["doctor_pid"], info.get("doctor_start_ticks")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
        job.recording = recording
        job.recorded_as = "" if recording == part else os.path.basename(part)
        job.joint = info.get("joint")
        if type(pid) is int and 0 < pid < 1 << 31:
            job.recorder = pid, ticks if type(ticks) is int else None
        return


def _exit_line(pid: int, start_ticks: int, status: int | None) -> dict[str, Any]:
    signaled = status is not None and os.WIFSIGNALED(status)
    code = None if status is None or signaled else os.WEXITSTATUS(status)
    return {
        "pid": pid,
        "start_ticks": start_ticks,
        "exit_code": code,
        "signal": os.WTERMSIG(status) if status is not None and signaled else None,
        "at": time.time(),
        "how": "gone" if status is None else "zombie",
    }
