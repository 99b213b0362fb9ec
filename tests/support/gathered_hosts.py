"""A job on two hosts, as their agents would send it: both hosts are this machine by other names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from mgpu_probes.inprocess import layout
from mgpu_probes.inprocess.blackbox import Writer
from mgpu_probes.outside.node.channel_frames import pack_frame

from mgpu_doctor.case.model import Case
from mgpu_doctor.case.recording_case import load_recording
from tests.support.boxes import write_steps
from tests.support.host_frames import NOW, HostFrames, frames_of_box, hello, job_frame, receive

HOSTS = ("node-a", "node-b")


class Hosts:
    """Two hosts with one rank each, both of pid 4711."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = HostFrames()
        self.jobs = first.jobs
        self.mirrors = (first.mirror, HostFrames(first.jobs).mirror)
        self.boxes: list[Path] = []
        kernel = os.uname()
        for rank, host in enumerate(HOSTS):
            with monkeypatch.context() as patch:
                patch.setattr(os, "uname", lambda host=host: _named(kernel, host))
                patch.setattr(os, "getpid", lambda: 4711)
                writer = Writer.open(folder / host, rank=rank, local_rank=0, world_size=2)
            write_steps(writer, 30)
            writer.state(layout.RUNNING)
            writer.close()
            self.boxes.append(Path(writer.path))

    def send(self, host: int, *frames: bytes, ahead: float = 0.0, **job: Any) -> None:
        """Everything that a host sends at first, and then these frames."""
        begin = hello(HOSTS[host], NOW + ahead), job_frame(ranks=[[host, 4711]], **job)
        self.mirrors[host].make_request(1.0)
        box = frames_of_box(self.boxes[host])
        receive(self.mirrors[host], *begin, box, *frames, pack_frame("tick", at=NOW, cpu=0.1))

    @property
    def case(self) -> Case:
        (job,) = self.jobs.values()
        return load_recording(job.folder)


def _named(kernel: os.uname_result, host: str) -> os.uname_result:
    return os.uname_result((kernel[0], host, *kernel[2:]))
