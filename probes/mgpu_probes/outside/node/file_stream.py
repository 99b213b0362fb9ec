"""Reads the files of a recording on this host for another one: samples, console copies, exits.

Files of lines grow; a file that was replaced (long files of samples are thinned out) is sent again
from its beginning. JSON objects are replaced as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mgpu_probes.outside.node.channel_frames import MOST_BODY, pack_frame

MOST_OBJECT = 512 << 10
MOST_AT_ONCE = 4
"""Frames of one file in one poll: samples of a long run must not delay the boxes."""
OF_JOB = ("recording.json", "end.json")
OF_HOST = ("exits.jsonl", "ending.json", "host.jsonl", "devices.jsonl")
CONSOLE = tuple(
    f"console/{stream}.log{part}"
    for stream in ("console", "stdout", "stderr")
    for part in ("", ".1")
)


class _State(NamedTuple):
    """What was sent of a file. `mark`: differs after it was replaced."""

    mark: str
    sent: int


class FileStream:
    """The files of one recording. `host`: what it calls this host; empty: it is the part of this
    host alone. `cursors`: name -> [mark, bytes] that the reader has."""

    def __init__(
        self, recording: str, host: str, cursors: Mapping[str, tuple[str, int]] | None = None
    ) -> None:
        self._paths = {name: os.path.join(recording, name) for name in (*OF_JOB, *CONSOLE)}
        place = os.path.join(recording, "hosts", host) if host else recording
        self._paths.update({name: os.path.join(place, name) for name in OF_HOST})
        known = cursors or {}
        self._states = {name: _State(*known[name]) for name in self._paths if name in known}

    def poll(self, job: int) -> Iterator[bytes]:
        """Yields frames with what is new. `job`: what the frames call the job."""
        for name, path in self._paths.items():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode):
                    send = self._whole if name.endswith(".json") else self._grown
                    yield from send(job, name, descriptor, status)
            except OSError:
                continue  # a file system that is going away
            finally:
                os.close(descriptor)

    def _whole(
        self, job: int, name: str, descriptor: int, status: os.stat_result
    ) -> Iterator[bytes]:
        mark = f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"
        known = self._states.get(name)
        if (known is None or known.mark != mark) and 0 < status.st_size <= MOST_OBJECT:
            self._states[name] = _State(mark, status.st_size)
            body = os.pread(descriptor, MOST_OBJECT, 0)
            yield pack_frame("file", body, job=job, name=name, mark=mark, at=0)

    def _grown(
        self, job: int, name: str, descriptor: int, status: os.stat_result
    ) -> Iterator[bytes]:
        mark = str(status.st_ino)
        known = self._states.get(name, _State("", 0))
        at = known.sent if known.mark == mark and known.sent <= status.st_size else 0
        for _ in range(MOST_AT_ONCE):
            body = os.pread(descriptor, MOST_BODY, at)
            if name.endswith(".jsonl"):
                body = body[: body.rfind(b"\n") + 1]  # whole lines
            if not body:
                return
            yield pack_frame("file", body, job=job, name=name, mark=mark, at=at)
            at += len(body)
            self._states[name] = _State(mark, at)
