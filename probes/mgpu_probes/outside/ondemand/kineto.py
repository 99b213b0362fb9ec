"""Traces of ranks that nothing of ours is in, by the daemon protocol of Kineto, torch's profiler.

A process that was started with KINETO_USE_DAEMON=1 asks a daemon (dynolog) every five seconds, ten
where it finds none, whether it is to trace: a datagram to a unix socket in the abstract namespace
or, with KINETO_IPC_SOCKET_DIR, in a folder. For the time of a trace we are that daemon. All ranks
are told the same moment to begin; Kineto writes the files by itself. (libkineto,
`IpcFabricConfigClient`; checked with torch 2.13 on CPUs.)
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.found import FoundProcess
from mgpu_probes.outside.ondemand.facts import Taken, Tell, move

NAME = "dynolog"
AHEAD = 14.0
"""Seconds until the begin: each rank asks at least once in ten."""
SECONDS = 3.0
"""Of a trace, if no others are wanted; Kineto can count steps, too, but only an optimizer's."""
WRITING = 60.0
"""Seconds that a rank may take to write its trace."""
POLL = 0.2
MOST_ASKED = 1 << 16
_HEAD = struct.Struct("=Q32s")
"""Bytes that follow, what they are. ipcfabric/FabricManager.h."""
_ASKED = struct.Struct("=iiq")
"""What kind of trace it could make, how many pids follow, a job's number. The first pid is that
of the process itself, then those above it."""
_ACTIVITIES = 2
"""Flag of the kind."""
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid, gid: unix(7), SCM_CREDENTIALS."""


class OccupiedError(OSError):
    """We cannot be the daemon; the message says why as part of a sentence."""


@dataclass(slots=True)
class Daemon:
    """What it answers: a configuration once to each of `ranks`, nothing to anybody else."""

    ranks: frozenset[int]
    configuration: bytes
    given: set[int] = field(default_factory=set)

    def answer(self, asked: bytes, sender: int) -> bytes | None:
        """`sender`: the pid that the kernel vouches for."""
        if len(asked) < _HEAD.size:
            return None
        kind = _HEAD.unpack_from(asked)[1].partition(b"\0")[0]
        if kind == b"ctxt":
            return _message(kind, struct.pack("=i", 1))
        if kind != b"req" or len(asked) < _HEAD.size + _ASKED.size:
            return None
        could = _ASKED.unpack_from(asked, _HEAD.size)[0]
        wanted = sender in self.ranks - self.given and could & _ACTIVITIES
        if wanted:
            self.given.add(sender)
        return _message(kind, self.configuration if wanted else b"")


def take(
    ranks: Sequence[FoundProcess],
    socket_folder: str | None,
    seconds: float,
    folder: Path,
    tell: Tell,
) -> list[Taken]:
    """`folder`: where the traces go. Raises OccupiedError."""
    begin = time.time() + AHEAD
    daemon = Daemon(frozenset(one.pid for one in ranks), _configuration(folder, begin, seconds))
    files = {one.pid: folder / f"kineto_{one.inner_pid or one.pid}.json" for one in ranks}
    with _listening(socket_folder) as listening:
        end = begin + seconds + WRITING
        while (now := time.time()) < end:
            _serve(listening, daemon)
            left = [pid for pid, file in files.items() if not file.exists()]
            expected = left if now < begin else daemon.given.intersection(left)
            if not any(processes.alive(pid) for pid in expected):
                break
            tell(_how_far(daemon, begin - now, seconds))
    return [
        move(files[one.pid], one.pid, one.rank, folder)
        if files[one.pid].exists()
        else Taken(one.pid, one.rank, None, _why_not(one.pid, daemon))
        for one in ranks
    ]


def _how_far(daemon: Daemon, ahead: float, seconds: float) -> str:
    if ahead > 0:
        heard = f"{len(daemon.given)} of {len(daemon.ranks)} ranks have heard"
        return f"{heard}; tracing begins in {ahead:.0f} s"
    return f"tracing for {seconds:.0f} s" if -ahead < seconds else "the ranks write their traces"


def _why_not(pid: int, daemon: Daemon) -> str:
    if not processes.alive(pid):
        return "it ended while it was traced"
    if pid in daemon.given:
        return f"its trace did not come within {WRITING:.0f} s"
    return f"its Kineto did not ask in {AHEAD:.0f} s: another network namespace, or no PyTorch"


def _configuration(folder: Path, begin: float, seconds: float) -> bytes:
    """Kineto adds `_PID` to the file's name."""
    where = str(folder.resolve() / "kineto.json")
    if not where.isprintable():
        raise OccupiedError(f"Kineto cannot be told of the folder {where!r}: name another")
    return (
        f"PROFILE_START_TIME={int(begin * 1000)}\n"
        f"ACTIVITIES_LOG_FILE={where}\n"
        f"ACTIVITIES_DURATION_MSECS={int(seconds * 1000)}\n"
    ).encode()


def _message(kind: bytes, content: bytes) -> bytes:
    return _HEAD.pack(len(content), kind) + content


@contextmanager
def _listening(folder: str | None) -> Iterator[socket.socket]:
    """Where the ranks look for a daemon."""
    path = None if folder is None else f"{folder}/{NAME}"
    if path is not None and _is_left_over(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as found:
        found.settimeout(POLL)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            found.bind(path or f"\0{NAME}\0".encode())
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OccupiedError(f"{path or NAME} cannot be bound ({error.strerror})") from None
            raise OccupiedError(
                "a daemon for Kineto runs here already: ask it, as with `dyno gputrace --pids PID "
                "--log-file FILE`, or try again when another `mgpu-doctor trace` is done"
            ) from None
        try:
            yield found
        finally:
            if path is not None:
                os.unlink(path)


def _is_left_over(path: str) -> bool:
    """Whether nobody listens at this socket any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _serve(listening: socket.socket, daemon: Daemon) -> None:
    """Answers one, if one asks in time."""
    with suppress(TimeoutError):
        asked, told, _, address = listening.recvmsg(
            MOST_ASKED, socket.CMSG_SPACE(_CREDENTIALS.size)
        )
        sender = next(
            (
                _CREDENTIALS.unpack(data)[0]
                for level, kind, data in told
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
                and len(data) == _CREDENTIALS.size
            ),
            0,
        )
        answer = daemon.answer(asked, sender)
        if answer is not None and address:
            with suppress(OSError):  # it has gone, or its queue is full
                listening.sendto(answer, socket.MSG_DONTWAIT, address)
