"""The recording of a job on several hosts, as it arrives: an ordinary folder that all verbs read.

The job counts as running while this process gathers it (`job_pid`) and a host still has processes
of it. Console copies of each host lie beside its boxes."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mgpu_probes.outside import processes
from mgpu_probes.outside.node.channel_frames import BadStream
from mgpu_probes.outside.node.file_stream import OBJECTS

from mgpu_doctor import __version__
from mgpu_doctor.case.joint_snapshots import join_snapshots
from mgpu_doctor.case.model import AskedHost
from mgpu_doctor.cluster.agent_messages import FileName, JobFacts
from mgpu_doctor.recording import layout
from mgpu_doctor.recording.home import job_name, new_recording
from mgpu_doctor.recording.joint_recordings import combine_ends
from mgpu_doctor.recording.write import Lines, private_folder, write_json, write_whole

MOST_BYTES = 32 << 20
"""Bytes of one file of a host; those of a recording are smaller."""
Json = dict[str, Any]


@dataclass(slots=True)
class _Part:
    """What one host has of the job."""

    over: bool = False
    end: Json | None = None
    """Its `end.json`."""


class GatheredJob:
    """A job, and the recording made of it. Raises OSError."""

    def __init__(self, facts: JobFacts, host: str) -> None:
        self._prepare(new_recording(job_name(facts.command), time.time()))
        self._runs = True
        self._info: Json = {
            "schema": layout.SCHEMA,
            "id": self.folder.name,
            "kind": layout.GATHERED,
            "command": list(facts.command),
            "host": os.uname().nodename,
            "doctor_pid": os.getpid(),
            "doctor_start_ticks": processes.find_start_ticks(os.getpid()),
            "doctor_version": __version__,
            "boot_id": processes.boot_id(),
            "probe": True,
        }
        self._write_info()
        self.add_host(host)

    def _prepare(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, _Part] = {}
        self._lines: dict[tuple[str, str], Lines] = {}
        self.snapshots: dict[str, Json] = {}
        """Host -> snapshot of its processes, of those asked for."""
        self._asked: tuple[AskedHost, ...] = ()
        self.newest_record = 0
        """The highest number of a step record of any rank that has arrived; it never falls."""

    def add_host(self, host: str) -> None:
        """Makes the folders of a host."""
        if host not in self._parts:
            self._parts[host] = _Part()
            private_folder(layout.boxes(self.folder, host))

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that have ranks of it."""
        return tuple(self._parts)

    @property
    def over(self) -> bool:
        """Whether no host that was heard of has processes of it."""
        return all(part.over for part in self._parts.values())

    def note_hosts(self, asked: tuple[AskedHost, ...]) -> None:
        """Writes which hosts were asked for ranks, and why some are not seen, if that changed."""
        if self._asked != asked:
            self._asked = asked
            self._info["asked_hosts"] = [asdict(host) for host in asked]
            self._write_info()

    def boxes(self, host: str) -> Path:
        return layout.boxes(self.folder, host)

    def update(self, host: str, facts: JobFacts) -> None:
        """Takes note of what a host says about the job."""
        self._parts[host].over = facts.over
        self._settle()

    def leave(self, host: str) -> None:
        """Takes note that a host has no process of the job any more."""
        self._parts[host].over = True
        self._settle()

    def add_part(self, host: str, name: FileName, body: bytes, *, anew: bool) -> None:
        """Appends a part of a file of the host's own recording. `anew`: it is the first one, of a
        file that may have replaced another. Raises BadStream, and OSError without a change."""
        path = self.folder / layout.HOSTS / host / name
        private_folder(path.parent)
        if path.name in (layout.INFO, layout.END):
            self._learn(host, name, body)
            return
        if path.name in OBJECTS:
            write_whole(path, body)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "ab", buffering=0) as file:
            if anew:
                file.truncate(0)
            before = os.fstat(file.fileno()).st_size
            if before + len(body) > MOST_BYTES:
                raise BadStream(f"it sends a {name} that is larger than any is")
            rest = memoryview(body)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:  # the disk is full: the part comes again, as a whole
                os.ftruncate(file.fileno(), before)
                raise

    def add_line(self, host: str, name: str, line: Json) -> None:
        """Appends a line to a file that the host itself does not write."""
        lines = self._lines.get((host, name))
        if lines is None:
            path = self.folder / layout.HOSTS / host / name
            lines = Lines(path, samples=name == layout.HOST_SAMPLES)
            self._lines[host, name] = lines
        lines.append(line)

    def add_snapshot(self, host: str, line: Json) -> None:
        """Keeps a snapshot of the processes on a host until those of all hosts are there."""
        self.snapshots[host] = line

    def join_snapshots(self) -> bool:
        """Adds the snapshots that have arrived to the recording, as one; whether it could."""
        joint = join_snapshots(self.snapshots, self.hosts)
        first = next(iter(self.snapshots), "")
        self.snapshots = {}
        if joint is not None:
            with suppress(OSError):  # too long, or too many
                self.add_line(first, layout.LOOKS, joint)
                return True
        return False

    def _learn(self, host: str, name: str, body: bytes) -> None:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            return
        if not isinstance(content, dict):
            return
        if name == layout.END:
            self._parts[host].end = content
            self._settle()
        elif "started" not in self._info:
            kept = ("command", "cwd", "started")
            self._info.update({key: content[key] for key in kept if key in content})
            self._write_info()

    def _settle(self) -> None:
        """Writes whether the job runs, and how it ended once all of its hosts say that it has. A
        host that is heard of later may still run it."""
        ends = [part.end for part in self._parts.values() if part.end is not None]
        if self.over and len(ends) == len(self._parts):
            write_json(self.folder / layout.END, combine_ends(ends))
            return
        (self.folder / layout.END).unlink(missing_ok=True)
        if self.over == self._runs:
            self._runs = not self.over
            self._write_info()

    def _write_info(self) -> None:
        """Writes `recording.json`. While the job runs, this process stands for its first one, which
        is on another host."""
        pid, ticks = self._info["doctor_pid"], self._info["doctor_start_ticks"]
        stand_in = {"job_pid": pid, "job_start_ticks": ticks} if self._runs else {}
        write_json(self.folder / layout.INFO, {**self._info, **stand_in})
