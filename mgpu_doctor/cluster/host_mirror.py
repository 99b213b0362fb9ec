"""What one host has sent so far: kept when its channel breaks, so that the next one continues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from mgpu_probes.outside.node.channel_frames import BadStream, RawFrame
from mgpu_probes.outside.node.file_stream import OBJECTS

from mgpu_doctor.case.job_snapshots import decode_job_snapshot
from mgpu_doctor.cluster.agent_messages import (
    BoxFound,
    ClockTold,
    Hello,
    JobChanged,
    JobFacts,
    Message,
    NewChunk,
    NewHeader,
    NewHostSample,
    NewPart,
    NewRecords,
    NewSnapshot,
    RankEnded,
    RankReplied,
    RecordingFound,
    Tick,
    parse_job,
    parse_message,
)
from mgpu_doctor.cluster.box_mirror import BoxMirror
from mgpu_doctor.cluster.clock_offset import ClockOffset
from mgpu_doctor.cluster.engine import Trouble
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_request import HostRequest
from mgpu_doctor.recording.boxheader import BadBox
from mgpu_doctor.recording.layout import EXITS, HOST_SAMPLES

MOST_JOBS, MOST_BOXES, MOST_FILES = 256, 4096, 4096
_TIMES = ("at", "started", "ended")
_WITHOUT_TIMES = ("ending.json", "console/", "flight/")
"""What is in the names of files whose times stay those of their host."""
JobKey = tuple[str, ...]
"""Equal for the parts of one job on several hosts."""


class Jobs(Protocol):
    """Finds the job of a key, or begins it."""

    def __call__(self, key: JobKey, facts: JobFacts, host: str) -> GatheredJob: ...


class HostRefused(ValueError):  # noqa: N818 - says what happened
    """The host must not be read, however well it answers."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.reason)
        self.trouble = trouble


class HostMirror:
    """What a host sent. `find_job`: the job to which a part of it belongs. `admit`: called with the
    first greeting; raises HostRefused. `joint`: the key of the only job that is wanted
    (`joint_recordings`); None: all are."""

    def __init__(
        self,
        find_job: Jobs,
        admit: Callable[[Hello], None],
        clock: Callable[[], float] = time.time,
        joint: str | None = None,
    ) -> None:
        self._joint = joint
        self._find_job = find_job
        self._admit = admit
        self._clock = clock
        self.hello: Hello | None = None
        self.synced = False
        """Whether everything that was there when the channel began has arrived."""
        self.offset = ClockOffset(clock)
        self._facts: dict[int, JobFacts] = {}
        self._jobs: dict[int, GatheredJob] = {}
        self._boxes: dict[int, BoxMirror] = {}
        self._box_jobs: dict[int, GatheredJob] = {}
        self._ignored: set[int] = set()
        self.refused: dict[str, str] = {}
        """Identity of a box that cannot be read -> why."""
        self._known: dict[str, BoxMirror] = {}
        """Identity -> box, of all channels so far."""
        self._owners: dict[str, GatheredJob] = {}
        """Identity of a box -> its job."""
        self._paths: dict[int, str] = {}
        self._files: dict[str, dict[str, tuple[str, int]]] = {}
        """Path of a recording on the host -> name of a file -> its mark and bytes that arrived."""
        self._requests: dict[int, HostRequest] = {}
        self._last_request = 0

    @property
    def jobs(self) -> tuple[JobFacts, ...]:
        """The jobs that run on the host, or did."""
        return tuple(self._facts.values())

    @property
    def lost(self) -> int:
        """Records that were overwritten before they could be sent."""
        return sum(box.lost for box in list(self._known.values()))

    def number_of(self, job: GatheredJob) -> int | None:
        """What the agent calls a job; None: the host has none of it now."""
        return next((number for number, known in self._jobs.items() if known is job), None)

    def boxes_of(self, job: GatheredJob) -> dict[str, BoxMirror]:
        """Identity -> box, of the boxes of a job that were found on this host."""
        return {key: box for key, box in self._known.items() if self._owners[key] is job}

    def number_boxes(self) -> dict[str, int]:
        """Identity -> what the agent calls the box, of those that it has now."""
        numbers = {id(box): number for number, box in self._boxes.items()}
        known = ((identity, numbers.get(id(box))) for identity, box in self._known.items())
        return {identity: number for identity, number in known if number is not None}

    def expect(self, request: HostRequest) -> int:
        """The number of a request whose replies will arrive. Those of requests that are over are
        dropped."""
        self._requests = {key: one for key, one in self._requests.items() if not one.over}
        self._last_request += 1
        self._requests[self._last_request] = request
        return self._last_request

    def make_request(self, every: float) -> dict[str, Any]:
        """The first request for a new agent: what has arrived already. `every`: seconds between
        polls."""
        self.synced = False
        for request in self._requests.values():
            request.abandon("the connection broke")
        self._requests.clear()
        self._ignored.clear()
        for numbered in (self._facts, self._jobs, self._boxes, self._box_jobs, self._paths):
            numbered.clear()
        boxes = {
            identity: (box.source, self._owners[identity].folder.name, box.cursors)
            for identity, box in self._known.items()
        }
        return {"every": every, "boxes": boxes, "files": self._files, "joint": self._joint}

    def receive(self, frame: RawFrame) -> None:
        """Takes in a frame. Raises BadStream, and OSError if it cannot be written here."""
        message = parse_message(frame)
        if isinstance(message, Hello):
            self._greet(message)
        elif self.hello is None:
            raise BadStream("it does not begin with a greeting")
        else:
            self._take(message, frame.body, self.hello.host)

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None and self.hello.host != hello.host:
            raise BadStream(f"it is {hello.host} now and was {self.hello.host}")
        if self.hello is None:
            self._admit(hello)
        self.offset.hear(hello.at)
        self.hello = hello

    def _take(self, message: Message, body: bytes, host: str) -> None:  # noqa: PLR0912 - one per kind
        match message:
            case Tick():
                if not self.synced:
                    self._close_absent(host)
                self.synced = True
            case ClockTold():
                self.offset.answer(message.asked, message.arrived, message.at)
            case JobChanged():
                self._change(parse_job(body), host)
            case BoxFound():
                self._open(message, body, host)
            case NewRecords() | NewChunk() | NewHeader():
                self._grow(message, body)
            case RecordingFound():
                self._paths[message.job] = message.path
            case NewPart():
                self._add_part(message, body, host)
            case RankEnded():
                line = msgspec.structs.asdict(message.line)
                line["at"] -= self.offset.corrected
                self._job(message.job).add_line(host, EXITS, line)
            case NewHostSample():
                self._add_sample(message, body, host)
            case NewSnapshot():
                self._add_snapshot(message, body, host)
            case RankReplied():
                request = self._requests.get(message.id)
                if request is not None and not request.over:
                    request.add(message, body)

    def _change(self, facts: JobFacts, host: str) -> None:
        if facts.job not in self._facts and len(self._facts) >= MOST_JOBS:
            raise BadStream("it sends more jobs than a host has")
        self._facts[facts.job] = facts
        if facts.job in self._jobs:
            self._jobs[facts.job].update(host, facts)

    def _open(self, message: BoxFound, header: bytes, host: str) -> None:
        facts = self._facts.get(message.job)
        if facts is None or len(self._known) >= MOST_BOXES:
            raise BadStream("it sends a black box of no job, or too many of them")
        if message.job not in self._jobs:
            own = ("host", host, str(facts.pid))
            key = tuple(facts.rendezvous) or own
            job = self._owners.get(message.identity) or self._find_job(key, facts, host)
            job.add_host(host)
            job.update(host, facts)
            self._jobs[message.job] = job
        box = self._known.get(message.identity)
        if box is None:
            path = self._jobs[message.job].boxes(host) / Path(message.path).name
            try:
                box = BoxMirror(path, message.path, header, self.offset.corrected)
            except BadBox as error:
                self.refused[message.identity] = str(error)
                self._ignored.add(message.box)
                return
            self._known[message.identity] = box
            self._owners[message.identity] = self._jobs[message.job]
        self._boxes[message.box] = box
        self._box_jobs[message.box] = self._owners[message.identity]

    def _close_absent(self, host: str) -> None:
        """Notes the end of ranks that an earlier channel showed and this one does not have: nobody
        saw when and how they ended."""
        present = {id(box) for box in self._boxes.values()}
        alive = {pid for facts in self._facts.values() for _, pid in facts.ranks}
        for identity, box in self._known.items():
            pid, ticks = box.process
            if id(box) not in present and pid not in alive:
                line = {"pid": pid, "start_ticks": ticks, "at": self._clock(), "how": "gone"}
                self._owners[identity].add_line(host, EXITS, line)
        for job in {id(job): job for job in self._owners.values()}.values():
            if job not in self._jobs.values():
                job.leave(host)

    def _grow(self, message: NewRecords | NewChunk | NewHeader, body: bytes) -> None:
        """Writes what is new of a box, unless the box cannot be read anyway."""
        if message.box in self._ignored:
            return
        box = self._boxes.get(message.box)
        if box is None:
            raise BadStream("it refers to a black box that it has not named")
        match message:
            case NewRecords():
                box.add_records(message.ring, message.first, body)
                job = self._box_jobs[message.box]
                job.newest_record = max(job.newest_record, box.cursors["steps"])
            case NewChunk():
                box.add_chunk(message.at, body)
            case NewHeader():
                box.add_header(body)

    def _add_part(self, message: NewPart, body: bytes, host: str) -> None:
        files = self._files.setdefault(self._paths.get(message.job, ""), {})
        if message.name not in files and len(files) >= MOST_FILES:
            raise BadStream("it sends more files than a recording has")
        mark, sent = files.get(message.name, ("", 0))
        if message.at not in (0, sent) or (message.at and message.mark != mark):
            raise BadStream(f"it sends parts of {message.name} in a wrong order")
        here = _shift_times(message.name, body, self.offset.corrected)
        self._job(message.job).add_part(host, message.name, here, anew=not message.at)
        files[message.name] = message.mark, message.at + len(body)

    def _add_sample(self, message: NewHostSample, body: bytes, host: str) -> None:
        try:
            sample: Any = json.loads(body)
            sample["at"] = float(sample["at"]) - self.offset.corrected
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadStream("it sends a sample that cannot be read") from None
        for number in message.jobs:
            self._job(number).add_line(host, HOST_SAMPLES, sample)

    def _add_snapshot(self, message: NewSnapshot, body: bytes, host: str) -> None:
        snapshot = decode_job_snapshot(body)
        if snapshot is None:
            raise BadStream("it sends stacks that cannot be read")
        line = msgspec.to_builtins(snapshot)  # what was not read as it should be is left out
        line["at"] = snapshot.at - self.offset.corrected
        self._job(message.job).add_snapshot(host, line)

    def _job(self, number: int) -> GatheredJob:
        job = self._jobs.get(number)
        if job is None:
            raise BadStream("it refers to a job that it has not named")
        return job


def _shift_times(name: str, body: bytes, ahead: float) -> bytes:
    """A part of a file, with times of a clock that is behind the one of its host by `ahead`
    seconds. What cannot be read stays as it is."""
    if not ahead or any(part in name for part in _WITHOUT_TIMES):
        return body
    if name.endswith(OBJECTS):
        return _shift_object(body, ahead)
    return b"\n".join(_shift_object(line, ahead) for line in body.split(b"\n"))


def _shift_object(text: bytes, ahead: float) -> bytes:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(content, dict):
        return text
    events = content.get("events")
    for item in (content, *(events if isinstance(events, list) else ())):
        for key in _TIMES if isinstance(item, dict) else ():
            if type(item.get(key)) in (int, float):
                item[key] -= ahead
    return json.dumps(content, separators=(",", ":")).encode()
