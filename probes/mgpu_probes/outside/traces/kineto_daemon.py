"""Traces of ranks without our probe, by the daemon protocol of Kineto, torch's profiler.

A process that was started with KINETO_USE_DAEMON=1 asks a daemon (dynolog) every five seconds, or
every ten if there is no daemon, whether to trace: a datagram to a unix socket in the abstract
namespace or, with KINETO_IPC_SOCKET_DIR, in a folder. During a trace we act as that daemon. All
ranks receive the same start time; Kineto writes the files by itself.
(libkineto, `IpcFabricConfigClient`; checked with torch 2.13 on CPUs.)

Every user of the machine can send to a socket in the abstract namespace. The kernel reports who
sent a message; only processes of this user and of root get an answer."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mgpu_probes.outside import processes
from mgpu_probes.outside.jobs.running_jobs import JobProcess
from mgpu_probes.outside.traces.trace_requests import TakenTrace, Tell, move_trace

NAME = "dynolog"
AHEAD = 14.0
"""Seconds until the trace starts: each rank polls at least once in ten."""
SECONDS = 3.0
"""Default length of a trace. Kineto can also count steps, but only those of an optimizer."""
WRITING = 60.0
"""Seconds that a rank has to write its trace."""
POLL = 0.2
LONGEST = 4096
"""Most bytes of a message. A request has about 70, plus four per ancestor of the rank."""
_HEAD = struct.Struct("=Q32s")
"""Length in bytes and type of the rest. ipcfabric/FabricManager.h."""
_ASKED = struct.Struct("=iiq")
"""Kind of trace that the rank offers, number of pids that follow, job number. The first pid is the
process's own, the others are its ancestors'."""
_ACTIVITIES = 2
"""Flag of the kind."""
_CREDENTIALS = struct.Struct("=iII")
"""pid, uid, gid: unix(7), SCM_CREDENTIALS."""


class OccupiedError(OSError):
    """This process cannot become the daemon; the message says why, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a message, as verified by the kernel."""

    pid: int
    uid: int


@dataclass(slots=True)
class Daemon:
    """Answers each of `ranks` once with a configuration, other processes of `user` and root with
    an empty one, and other users not at all."""

    ranks: frozenset[int]
    configuration: bytes
    user: int = field(default_factory=os.geteuid)
    given: set[int] = field(default_factory=set)

    def answer(self, asked: bytes, sender: Sender | None) -> bytes | None:
        """The answer to a message; None: no answer. `sender` None: not verified by the kernel."""
        if sender is None or sender.uid not in (self.user, 0) or len(asked) < _HEAD.size:
            return None
        kind = _HEAD.unpack_from(asked)[1].partition(b"\0")[0]
        if kind == b"ctxt":
            return _message(kind, struct.pack("=i", 1))
        if kind != b"req" or len(asked) < _HEAD.size + _ASKED.size:
            return None
        could = _ASKED.unpack_from(asked, _HEAD.size)[0]
        wanted = sender.pid in self.ranks - self.given and could & _ACTIVITIES
        if wanted:
            self.given.add(sender.pid)
        return _message(kind, self.configuration if wanted else b"")


def trace_by_kineto(
    ranks: Sequence[JobProcess],
    socket_folder: str | None,
    seconds: float,
    folder: Path,
    tell: Tell,
) -> list[TakenTrace]:
    """The traces of all ranks, written to `folder`. Raises OccupiedError."""
    begin = time.time() + AHEAD
    daemon = Daemon(frozenset(rank.pid for rank in ranks), _configuration(folder, begin, seconds))
    files = {rank.pid: folder / f"kineto_{rank.inner_pid or rank.pid}.json" for rank in ranks}
    with _listening(socket_folder) as listening:
        end = begin + seconds + WRITING
        while (now := time.time()) < end:
            _serve(listening, daemon)
            left = [pid for pid, file in files.items() if not file.exists()]
            expected = left if now < begin else daemon.given.intersection(left)
            if not any(processes.is_alive(pid) for pid in expected):
                break
            tell(_how_far(daemon, begin - now, seconds))
    return [
        move_trace(files[rank.pid], rank.pid, rank.rank, folder)
        if files[rank.pid].exists()
        else TakenTrace(rank.pid, rank.rank, None, _why_not(rank.pid, daemon))
        for rank in ranks
    ]


def _how_far(daemon: Daemon, ahead: float, seconds: float) -> str:
    if ahead > 0:
        heard = f"{len(daemon.given)} of {len(daemon.ranks)} ranks are ready"
        return f"{heard}; tracing begins in {ahead:.0f} s"
    return f"tracing for {seconds:.0f} s" if -ahead < seconds else "the ranks write their traces"


def _why_not(pid: int, daemon: Daemon) -> str:
    if not processes.is_alive(pid):
        return "it ended while it was traced"
    if pid in daemon.given:
        return f"its trace did not come within {WRITING:.0f} s"
    return f"its Kineto did not ask in {AHEAD:.0f} s: another network namespace, or no PyTorch"


def _configuration(folder: Path, begin: float, seconds: float) -> bytes:
    """Kineto's configuration of a trace. Kineto adds `_PID` to the file's name."""
    where = str(folder.resolve() / "kineto.json")
    if not where.isprintable():
        raise OccupiedError(f"Kineto cannot write to the folder {where!r}: name another one")
    return (
        f"PROFILE_START_TIME={int(begin * 1000)}\n"
        f"ACTIVITIES_LOG_FILE={where}\n"
        f"ACTIVITIES_DURATION_MSECS={int(seconds * 1000)}\n"
    ).encode()


def _message(kind: bytes, content: bytes) -> bytes:
    return _HEAD.pack(len(content), kind) + content


@contextmanager
def _listening(folder: str | None) -> Iterator[socket.socket]:
    """The socket on which the ranks expect a daemon. To Kineto an empty `folder` means none."""
    path = f"{folder}/{NAME}" if folder else None
    if folder and path:
        _check_folder(folder)
        _remove_left_over(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as listening:
        listening.settimeout(POLL)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        _bind(listening, path)
        own = path and os.lstat(path)
        try:
            yield listening
        finally:
            if path and own:
                _remove(path, own)


def _check_folder(folder: str) -> None:
    """Raises OccupiedError if other users could replace our socket."""
    try:
        why = explain_unsafe_folder(os.stat(folder), os.geteuid())
    except OSError as error:
        why = f"cannot be used ({error.strerror})"
    if why:
        raise OccupiedError(f"KINETO_IPC_SOCKET_DIR={folder} {why}")


def explain_unsafe_folder(folder: os.stat_result, user: int) -> str | None:
    """Why `user` must not listen in a folder, as the end of a sentence; None: it is safe."""
    if not stat.S_ISDIR(folder.st_mode):
        return "is not a folder"
    if folder.st_uid not in (user, 0):
        return "belongs to another user: name a folder of your own"
    if folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by other users: take that right away (`chmod go-w`)"
    return None


def _remove_left_over(path: str) -> None:
    """Removes the socket of an ended daemon of this user. Raises OccupiedError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise OccupiedError(f"{path} cannot be used ({error.strerror})") from None
    if not stat.S_ISSOCK(status.st_mode):
        raise OccupiedError(f"{path} exists and is not a socket: remove it")
    if _is_listened_to(path):
        return  # `_bind` says so
    if status.st_uid != os.geteuid():
        raise OccupiedError(f"{path} is an unused socket of another user")
    _remove(path, status)


def _is_listened_to(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asking:
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def _remove(path: str, known: os.stat_result) -> None:
    """Removes the file unless it was replaced."""
    with suppress(OSError):
        status = os.lstat(path)
        if (status.st_dev, status.st_ino) == (known.st_dev, known.st_ino):
            os.unlink(path)


def _bind(listening: socket.socket, path: str | None) -> None:
    """Binds the socket. Raises OccupiedError. Kineto refuses answers from any other spelling of
    `path`, such as one through a descriptor of its folder."""
    usual = os.umask(0o077)  # only the user may use the socket
    try:
        listening.bind(path or f"\0{NAME}\0".encode())
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise OccupiedError(f"{path or NAME} cannot be bound ({error.strerror})") from None
        raise OccupiedError(
            "a daemon for Kineto already runs here: use it, as with `dyno gputrace --pids PID "
            "--log-file FILE`, or try again when another `mgpu-doctor trace` is done"
        ) from None
    finally:
        os.umask(usual)


def _serve(listening: socket.socket, daemon: Daemon) -> None:
    """Answers one message, if one comes in time."""
    with suppress(TimeoutError):
        asked, ancillary, flags, address = listening.recvmsg(
            LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size)
        )
        if flags & socket.MSG_TRUNC:
            return
        answer = daemon.answer(asked, _read_sender(ancillary))
        if answer is not None and address:
            with suppress(OSError):  # it has gone, or its queue is full
                listening.sendto(answer, socket.MSG_DONTWAIT, address)


def _read_sender(ancillary: Sequence[tuple[int, int, bytes]]) -> Sender | None:
    credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
    for level, kind, data in ancillary:
        if (level, kind) == credentials and len(data) == _CREDENTIALS.size:
            pid, uid, _ = _CREDENTIALS.unpack(data)
            return Sender(pid, uid)
    return None
