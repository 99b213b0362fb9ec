"""The agent: sends what happens on this host to a reader, until the channel ends.

It runs from memory, writes no file, opens no port, and reads stacks, or passes requests for traces
on to ranks, only if the reader asks for it. The reader's first line says what it has already; then
a line now and then shows that it is still there."""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from collections.abc import Iterable
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.host_usage import HostUsage
from mgpu_probes.outside.node.agent_channel import AgentChannel
from mgpu_probes.outside.node.channel_frames import MAGIC, MOST_BODY, pack_frame
from mgpu_probes.outside.node.file_stream import FileStream
from mgpu_probes.outside.node.node_jobs import KnownBox, NodeJob, NodeJobs
from mgpu_probes.outside.node.rank_requests import RankRequests

SILENCE = 120.0
"""Seconds without a word of the reader after which the channel counts as broken. The kernel may
notice a dead connection only after a quarter of an hour."""
LEAST_EVERY, MOST_EVERY = 0.05, 60.0
HOST_EVERY = 1.0
FOR_CLOCK = 1.0
"""Seconds that the first question about the clock is waited for."""
MOST_LINE = 4 << 20
NICE = 5
Json = dict[str, Any]


def main() -> None:
    """Runs until standard input ends."""
    channel = AgentChannel(SILENCE, MOST_LINE)
    first = channel.requests.get()
    os.nice(NICE)
    Agent(channel, first).run()


class Agent:
    """Polls this host and writes frames to the channel. `first`: the first request."""

    def __init__(self, channel: AgentChannel, first: Json) -> None:
        self._channel = channel
        self._every = min(MOST_EVERY, max(LEAST_EVERY, float(first.get("every", 1.0))))
        self._files = first.get("files", {})
        self._joint = first.get("joint")  # the only job that the reader wants
        known = first.get("boxes", {})
        self._jobs = NodeJobs({identity: KnownBox(*box) for identity, box in known.items()})
        self._streams: dict[int, FileStream] = {}
        self._described: dict[int, Json] = {}
        self._boxes_sent: set[int] = set()
        self._exits_sent: set[tuple[int, int]] = set()
        self._requests = RankRequests()
        self._usage = HostUsage(closely=True)
        self._host_due = 0.0

    def run(self) -> None:
        self._channel.write(MAGIC)
        self._send(
            "hello",
            at=time.time(),
            host=os.uname().nodename,
            boot=processes.boot_id(),
            pid=os.getpid(),
            python=sys.version.split()[0],
            user=processes.name_user(os.geteuid()),
        )
        self._wait(time.monotonic() + FOR_CLOCK, for_clock=True)  # before boxes, which have times
        while True:
            began = time.monotonic()
            self._poll()
            self._send("tick", at=time.time(), cpu=round(time.process_time(), 3))
            self._wait(began + self._every)

    def _wait(self, until: float, *, for_clock: bool = False) -> None:
        """Answers requests until the next poll, or one about the clock. An empty one only shows
        that the reader is there."""
        self._channel.flush()
        while (left := until - time.monotonic()) > 0:
            try:
                request = self._channel.requests.get(timeout=left)
            except queue.Empty:
                return
            if isinstance(asked := request.get("clock"), float):
                self._send("clock", asked=asked, arrived=request["arrived"], at=time.time())
                self._channel.flush()
                if for_clock:
                    return
            number = request.get("stacks")
            if type(number) is int and 0 <= number < len(self._jobs.jobs):
                self._send_stacks(self._jobs.jobs[number])
            self._write_all(self._requests.answer(request, self._jobs.boxes))
            self._channel.flush()

    def _send_stacks(self, job: NodeJob) -> None:
        """Sends a snapshot of the job's processes and their stacks."""
        from mgpu_probes.outside.job_snapshot import take_snapshot
        from mgpu_probes.outside.stacks.stack_reader import Aid

        sockets = {box.process[0]: box.socket for box in job.boxes.values()}
        aids = {pid: Aid(worker_socket=path) for pid, path in sockets.items()}
        snapshot = take_snapshot(job.running, aids=aids)
        body = json.dumps(snapshot).encode()
        if len(body) > MOST_BODY:
            body = json.dumps({**snapshot, "stacks": [], "loops": []}).encode()[:MOST_BODY]
        self._channel.write(pack_frame("stacks", body, job=job.number))

    def _poll(self) -> None:
        self._jobs.scan()
        self._jobs.notice_exits()
        for job in self._jobs.jobs:
            if self._joint is not None and job.joint != self._joint:
                continue
            if job.number not in self._described:
                self._describe(job)
            if job.boxes:
                stream = self._find_stream(job)
                ends = stream.list_ends() if stream is not None else []
                self._send_boxes(job)
                if stream is not None:
                    self._write_all(stream.poll(job.number, ends))
                self._send_exits(job)
            self._describe(job)  # last: whoever reads that it is over has all of it
        self._send_host()

    def _describe(self, job: NodeJob) -> None:
        """Sends the facts of a job if they have changed."""
        described = job.describe()
        if self._described.get(job.number) != described:
            self._described[job.number] = described
            self._channel.write(pack_frame("job", json.dumps(described).encode()))

    def _send_boxes(self, job: NodeJob) -> None:
        for box in job.boxes.values():
            if box.number not in self._boxes_sent:
                self._boxes_sent.add(box.number)
                facts: Json = {"box": box.number, "job": job.number, "path": box.path}
                facts["identity"] = box.stream.identity
                self._channel.write(pack_frame("box", box.stream.first_header, **facts))
            if not box.ended:
                box.ended = not processes.is_alive(*box.process)
                self._write_all(box.stream.poll(box.number, over=box.ended))
                if box.ended:
                    box.stream.close()

    def _find_stream(self, job: NodeJob) -> FileStream | None:
        """The files of the job's recording; None: it has none."""
        if job.recording is None:
            return None
        if job.number not in self._streams:
            known = self._files.get(job.recording, {})
            self._streams[job.number] = FileStream(
                job.recording, job.recorded_as, known, whole=self._joint is not None
            )
            self._send("recording", job=job.number, path=job.recording)
        return self._streams[job.number]

    def _send_exits(self, job: NodeJob) -> None:
        """Sends exits that nobody records on this host."""
        for pid, line in job.exits.items():
            if (job.number, pid) not in self._exits_sent and not job.is_recorded:
                self._exits_sent.add((job.number, pid))
                self._send("exit", job=job.number, line=line)

    def _send_host(self) -> None:
        """Sends samples of this host for the jobs whose samples nobody records."""
        alone = [job for job in self._jobs.jobs if job.boxes and not job.over]
        alone = [job for job in alone if not job.is_recorded]
        if not alone or time.monotonic() < self._host_due:
            return
        self._host_due = time.monotonic() + HOST_EVERY
        pids = [process.pid for job in alone for process in job.running.processes][:512]
        sample = json.dumps(self._usage.sample(pids)).encode()
        self._channel.write(pack_frame("host", sample, jobs=[job.number for job in alone]))

    def _send(self, kind: str, **facts: Any) -> None:
        self._channel.write(pack_frame(kind, **facts))

    def _write_all(self, frames: Iterable[bytes]) -> None:
        for frame in frames:
            self._channel.write(frame)
