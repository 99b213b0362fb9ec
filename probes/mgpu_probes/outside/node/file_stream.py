"""Reads the files of a recording on this host for another one: samples, console copies, exits.

Files of lines grow; a file that was replaced (long files of samples are thinned out) is sent again
from its beginning. JSON objects are replaced as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mgpu_probes.outside.node.channel_frames import MOST_BODY, pack_frame

MOST_OBJECT = 512 << 10
MOST_AT_ONCE = 4
"""Frames of one file in one poll: samples of a long run must not delay the boxes."""
INFO, END, ENDING = "recording.json", "end.json", "ending.json"
OBJECTS = (INFO, END, ENDING)
"""Files that are sent as a whole."""
OF_HOST = ("exits.jsonl", ENDING, "host.jsonl", "devices.jsonl")
LOOKS, FLIGHT = "looks.jsonl", "flight"
"""What a hang leaves: snapshots of stacks, and a folder of flight-recorder dumps."""
TASKS = "tasks"
"""The parts of further tasks of the job on this host."""
MOST_DUMPS = MOST_TASKS = 1024
MOST_GROWN = 32 << 20
"""Bytes of a file that grows: a reader takes no more. Only a dump could be larger."""
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
    host alone. `cursors`: name -> [mark, bytes] that the reader has. `whole`: whether to send all
    that lies there: a reader of several jobs takes snapshots itself, and needs no parts of
    tasks."""

    def __init__(
        self,
        recording: str,
        host: str,
        cursors: Mapping[str, tuple[str, int]] | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._paths = {name: os.path.join(recording, name) for name in (INFO, *CONSOLE)}
        self._ends = {END: os.path.join(recording, END)}
        self._is_behind = False
        place = os.path.join(recording, "hosts", host) if host else recording
        self._place = place if whole else None
        own = (*OF_HOST, LOOKS) if whole else OF_HOST
        self._paths.update({name: os.path.join(place, name) for name in own})
        self._states = {name: _State(*state) for name, state in (cursors or {}).items()}

    def list_ends(self) -> list[str]:
        """Names of the ends that are there."""
        self._find_more()
        return [name for name, path in self._ends.items() if os.path.exists(path)]

    def poll(self, job: int, ends: Iterable[str]) -> Iterator[bytes]:
        """Yields frames with what is new. `job`: what the frames call the job; `ends`: those that
        were there before the boxes were read. They are sent last: who has them, has all."""
        self._find_more()
        self._is_behind = False
        yield from self._send(job, self._paths)
        if not self._is_behind:
            yield from self._send(job, {name: self._ends[name] for name in ends})

    def _send(self, job: int, paths: Mapping[str, str]) -> Iterator[bytes]:
        for name, path in paths.items():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode):
                    send = self._whole if name.endswith(OBJECTS) else self._grown
                    yield from send(job, name, descriptor, status)
            except OSError:
                continue  # a file system that is going away
            finally:
                os.close(descriptor)

    def _find_more(self) -> None:
        """Adds dumps of flight recorders, and the parts of tasks."""
        if self._place is None:
            return
        names = [f"{FLIGHT}/{name}" for name in _list_numbers(self._place, FLIGHT, MOST_DUMPS)]
        for task in _list_numbers(self._place, TASKS, MOST_TASKS):
            end = f"{TASKS}/{task}/{END}"
            self._ends.setdefault(end, os.path.join(self._place, end))
            names += [f"{TASKS}/{task}/{name}" for name in (INFO, ENDING, *CONSOLE)]
        for name in names:
            self._paths.setdefault(name, os.path.join(self._place, name))

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
        if status.st_size > MOST_GROWN:
            return
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
        self._is_behind |= at < status.st_size


def _list_numbers(place: str, folder: str, most: int) -> list[str]:
    """The names in a folder of a recording that are numbers, or JSON files named after them."""
    try:
        names = sorted(os.listdir(os.path.join(place, folder)))[:most]
    except OSError:
        return []
    return [name for name in names if name.isascii() and name.removesuffix(".json").isdecimal()]
