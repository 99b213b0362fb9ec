"""What agents send, made by hand: for hosts of which a test has only one or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgpu_probes.outside.node.box_stream import BoxStream
from mgpu_probes.outside.node.channel_frames import MAGIC, FrameSplitter, pack_frame

from mgpu_doctor.cluster.agent_messages import Hello, JobFacts
from mgpu_doctor.cluster.gathered_job import GatheredJob
from mgpu_doctor.cluster.host_mirror import HostMirror

NOW = 1_800_000_000.0


def hello(host: str = "node-a", at: float = NOW, boot: str | None = "boot-1") -> bytes:
    return pack_frame("hello", host=host, boot=boot, pid=7, python="3.11", user="me", at=at)


HOST = hello()


def job_frame(number: int = 0, **changed: Any) -> bytes:
    """A job of two ranks on two hosts, of which this one has rank 0."""
    facts = {
        "job": number,
        "over": False,
        "rendezvous": ["torch", "run-1", "node-a"],
        "launcher": "torchrun",
        "pid": 100,
        "world_size": 2,
        "command": ["torchrun", "train.py"],
        "ranks": [[0, 101]],
        "boxes": 1,
        "refused": [],
    }
    return pack_frame("job", json.dumps(facts | changed).encode())


def box_frame(header: bytes, number: int = 0, job: int = 0, name: str = "a.101.0.box") -> bytes:
    return pack_frame(
        "box", header, box=number, job=job, path=f"/r/{name}", identity=f"{job}.{name}"
    )


def frames_of_box(path: Path, number: int = 0, job: int = 0, name: str | None = None) -> bytes:
    """All frames of a box."""
    stream = BoxStream(str(path))
    begin = box_frame(stream.first_header, number, job, name or path.name)
    return begin + b"".join(stream.poll(number))


def receive(mirror: HostMirror, *frames: bytes) -> None:
    """Hands frames over, as a channel does."""
    for frame in FrameSplitter().feed(MAGIC + b"".join(frames)):
        mirror.receive(frame)


class HostFrames:
    """The mirror of one host, and the jobs that arrived; `jobs` may be shared by several."""

    def __init__(
        self,
        jobs: dict[tuple[str, ...], GatheredJob] | None = None,
        clock: Callable[[], float] = lambda: NOW,
        admit: Callable[[Hello], None] = lambda _: None,
    ) -> None:
        self.jobs: dict[tuple[str, ...], GatheredJob] = {} if jobs is None else jobs
        self.mirror = HostMirror(self._find, admit, clock)

    def _find(self, key: tuple[str, ...], facts: JobFacts, host: str) -> GatheredJob:
        if key not in self.jobs:
            self.jobs[key] = GatheredJob(facts, host)
        return self.jobs[key]
