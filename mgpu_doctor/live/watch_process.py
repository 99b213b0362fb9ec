"""Watches a job from a process of its own. Reading and diagnosing hundreds of ranks takes some
tenths of a second, in which the threads of the screen's process would hardly get on.

The process answers requests on standard input, which is a socket: it examines a recording and
passes on a file without a name, which only these two processes can open. So the pickle in it is
safe to load. Its arrays stay in the file, which is mapped."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mgpu_doctor.live.frame_source import LEAST_REST
from mgpu_doctor.live.machine_sampler import THREADS
from mgpu_doctor.live.seen_job import Leaders, Seen
from mgpu_doctor.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from mgpu_doctor.live.job_watch import Watch

SERVE = "from mgpu_doctor.live import watch_process; watch_process.serve()"
PATIENT_FROM = 2.0
"""Seconds between two frames from which a frame waits for what it requested, up to half as long:
else a screen that is drawn once per minute would show ranks as they were a minute ago."""
MOST_REQUEST = 1 << 16
"""Bytes of a request. Settings are far shorter."""
ALIGNED = 64
MOST_PARTS = 1000
"""Of one write; the system takes 1024."""
_COUNTS = struct.Struct("=QQ")
"""Bytes of the pickle, and number of its arrays, at the start of the file. Their sizes follow."""
_SIZE = struct.Struct("=Q")


class WatchFailed(RuntimeError):  # noqa: N818 - says what happened
    """The job could not be examined; the message says why."""


class Request(NamedTuple):
    """`judging`: as for `Watch.poll`."""

    recording: Path
    settings: Settings
    heated: bool
    judging: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """Times are those of the monotonic clock, which both processes share."""

    seen: Seen | None
    error: str
    """Why there is nothing to see."""
    at: float
    due: float
    """When the boxes should be read again."""


class WatchProcess:
    """Watches one recording, as `Watch` does, but `poll` only waits for the first view. For one
    thread. The process starts at once, and again if it was killed. `poll` raises WatchFailed."""

    def __init__(self, settings: Settings = DEFAULTS, *, heated: bool = True) -> None:
        self._settings = settings
        self._heated = heated
        self._recording: Path | None = None
        self._leaders = Leaders()
        self._newest: tuple[Seen, float] | None = None
        """What was seen, and when."""
        self._is_asked = False
        """Whether a request is not answered yet."""
        self._due = 0.0
        self._polled = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def turn_to(self, recording: Path) -> None:
        """Watches another recording from now on."""
        if self._is_asked:
            self._end()
        self._recording = recording.absolute()
        self._newest, self._due = None, 0.0
        self._leaders.follow(())

    def poll(self, *, judging: bool = True) -> Seen:
        """Returns the job as it was last examined, with its newest step, and has it examined again
        if that is due. `judging`: as for `Watch.poll`."""
        now = time.monotonic()
        passed, self._polled = now - self._polled, now
        self._receive(0.0)
        if not self._is_asked and (self._newest is None or now >= self._due):
            self._ask(judging=judging)
        if self._newest is None:
            self._receive(None)
        elif passed >= PATIENT_FROM:
            self._receive(passed / 2)
        assert self._newest is not None
        seen, at = self._newest
        past = time.monotonic() - at
        return self._leaders.advance(replace(seen, age=seen.age + past, read=seen.read + past))

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._leaders.close()
        self._end()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                (sys.executable, "-c", SERVE),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",  # Python imports from the working folder, too
                env={**os.environ, THREADS: "1", "PYTHONPATH": os.pathsep.join(_import_path())},
                start_new_session=True,  # it ends with its socket, not with Ctrl+C
            )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._socket.close()
        self._process, self._is_asked = None, False

    def _ask(self, *, judging: bool) -> None:
        assert self._recording is not None
        if self._process is None:
            self._start()
        request = Request(self._recording, self._settings, self._heated, judging)
        try:
            self._socket.sendall(pickle.dumps(request))
        except OSError:
            self._fail()
        self._is_asked = True

    def _receive(self, seconds: float | None) -> None:
        """Takes the answer to a request if it arrives within so many seconds; None: however long
        it takes."""
        if not self._is_asked:
            return
        self._socket.settimeout(seconds)
        try:
            data, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        except (TimeoutError, BlockingIOError):
            return
        except OSError:
            data, files = b"", []
        if not data or not files:
            self._fail()
        reply = _unpack(files[0])
        self._is_asked, self._due = False, reply.due
        if reply.seen is None:
            raise WatchFailed(reply.error)
        self._newest = reply.seen, reply.at
        self._leaders.follow(reply.seen.leaders)

    def _fail(self) -> None:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        self._end()
        how = "does not answer" if code is None else f"has ended (exit code {code})"
        raise WatchFailed(f"the process that examines the job {how}")


def _import_path() -> Iterator[str]:
    """Yields the folders from which this process imports."""
    return (str(Path(folder).absolute()) for folder in sys.path if folder)


def _pack(reply: Reply) -> int:
    """Returns the descriptor of a new file with the reply. Raises OSError."""
    arrays: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(reply, protocol=5, buffer_callback=arrays.append)
    raw = [array.raw() for array in arrays]
    sizes = b"".join(_SIZE.pack(part.nbytes) for part in raw)
    head = _COUNTS.pack(len(pickled), len(raw)) + sizes + pickled
    parts: list[memoryview] = []
    for part in (memoryview(head), *raw):
        parts += (part, memoryview(bytes(-part.nbytes % ALIGNED)))
    file = os.memfd_create("mgpu-doctor", os.MFD_CLOEXEC)
    try:
        at = 0
        for start in range(0, len(parts), MOST_PARTS):
            some = parts[start : start + MOST_PARTS]
            size = os.pwritev(file, some, at)
            if size != sum(part.nbytes for part in some):
                raise OSError("there is no memory for what was seen")
            at += size
    except OSError:
        os.close(file)
        raise
    return file


def _unpack(file: int) -> Reply:
    """Returns the reply in a file, which it closes. Its arrays are read-only."""
    with open(file, "rb") as opened:
        mapped = memoryview(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    length, count = _COUNTS.unpack_from(mapped)
    begin = _COUNTS.size + count * _SIZE.size
    at = begin + length
    arrays: list[memoryview] = []
    for (size,) in _SIZE.iter_unpack(mapped[_COUNTS.size : begin]):
        at += -at % ALIGNED
        arrays.append(mapped[at : at + size])
        at += size
    reply: Reply = pickle.loads(mapped[begin : begin + length], buffers=arrays)
    return reply


class _Examiner:
    """Answers requests; it keeps the watch of the last one's recording."""

    def __init__(self) -> None:
        self._recording: Path | None = None
        self._watch: Watch | None = None

    def answer(self, request: Request) -> Reply:
        spent = time.thread_time()
        seen, error, due = None, "", 0.0
        try:
            watch = self._watch_of(request)
            seen = watch.examine(judging=request.judging)
            due = watch.due
        except Exception as reason:  # the screen shows it, and the next request tries again
            error = f"{type(reason).__name__}: {reason}"
        now, took = time.monotonic(), time.thread_time() - spent
        return Reply(seen, error, now, max(due, now + LEAST_REST * took))

    def _watch_of(self, request: Request) -> Watch:
        from mgpu_doctor.live.job_watch import Watch

        if self._watch is None or self._recording != request.recording:
            if self._watch is not None:
                self._watch.close()
            self._recording = request.recording
            self._watch = Watch(request.recording, settings=request.settings, heated=request.heated)
        return self._watch


def serve() -> None:
    """Answers requests on standard input until the other process ends."""
    import mgpu_doctor.live.job_watch  # noqa: F401 - before there is something to examine

    examiner = _Examiner()
    with socket.socket(fileno=os.dup(0)) as requests:
        while data := requests.recv(MOST_REQUEST):
            file = _pack(examiner.answer(pickle.loads(data)))
            socket.send_fds(requests, [b"!"], [file])
            os.close(file)
