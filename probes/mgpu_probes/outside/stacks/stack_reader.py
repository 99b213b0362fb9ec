"""Stacks of one process by the best way available, and why better ways failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mgpu_probes.outside.jobs.running_jobs import UnreadSource
from mgpu_probes.outside.stacks import (
    faulthandler_stacks,
    ptrace_permission,
    pyspy_stacks,
    stack_threads,
    worker_socket,
)
from mgpu_probes.outside.stacks.pyspy_stacks import Kind
from mgpu_probes.outside.stacks.stack_threads import Json

WORKER = "worker socket"
FAULTHANDLER = "faulthandler"
_SHARE = 1.0
"""Seconds for a way that answers in milliseconds or not at all: Python's lock may be held."""
_REST = 60.0
"""Seconds for which a socket that did not answer is left alone."""
_INSTRUMENT = "start the job with `mgpu-doctor run -- COMMAND`: then its ranks tell by themselves"
_PERMIT = "let py-spy read the process instead: `mgpu-doctor check` tells what that takes"


@dataclass(frozen=True, slots=True)
class Aid:
    """What an instrumented rank has promised in its process metadata."""

    worker_socket: str | None = None
    """Path of its worker server's unix socket."""
    dump_file: str | None = None
    """Where it writes its stacks when `dump_signal` comes."""
    dump_signal: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`stacks`: as JSON; two where native frames were asked for."""

    stacks: tuple[Json, ...] = ()
    unread: tuple[UnreadSource, ...] = ()


def read_stacks(
    pid: int,
    end: float,
    *,
    native: bool = False,
    aid: Aid | None = None,
    started: int | None = None,
) -> Reading:
    """`end`: by this time of the monotonic clock. `started`: the process's start ticks.

    A process that has ended, and one that runs no Python, give nothing; only the latter is told.
    """
    found = pyspy_stacks.read_stack(pid, end)
    if not isinstance(found, pyspy_stacks.Failure):
        return _with_native(pid, found, end) if native else Reading((found,))
    if found.kind is Kind.GONE:
        return Reading()
    unread = [_unread(pid, pyspy_stacks.SOURCE, found)]
    if found.kind is Kind.FOREIGN and aid is None:
        return Reading(unread=tuple(unread))
    remedy = _INSTRUMENT if aid is None else _PERMIT
    for source, way in _other_ways(pid, aid or Aid(), end, started):
        try:
            at = time.time()
            threads = way()
        except OSError as error:
            unread.append(UnreadSource(pid, source, _words(error), remedy))
            continue
        if threads:
            return Reading((stack_threads.make_stack(pid, at, source, threads),), tuple(unread))
        unread.append(UnreadSource(pid, source, "it told no frames", remedy))
    return Reading(unread=tuple(unread))


def _other_ways(
    pid: int, aid: Aid, end: float, started: int | None
) -> Iterator[tuple[str, Callable[[], list[Json]]]]:
    def by_socket() -> list[Json]:
        if aid.worker_socket is None:
            raise OSError("the process has opened none that is known")
        return _traceback(aid.worker_socket, _left(end))

    def by_signal() -> list[Json]:
        if aid.dump_file is None or aid.dump_signal is None:
            raise OSError("the process has not said that it answers to a signal")
        by = time.monotonic() + _left(end)
        return faulthandler_stacks.request_stacks(
            pid, aid.dump_file, aid.dump_signal, by, started=started
        )

    yield WORKER, by_socket
    yield FAULTHANDLER, by_signal


_SILENT: dict[str, float] = {}
"""Sockets that gave no traceback, and when: Python's lock is held there. A request that waits for
it keeps the server's thread, or one of its few, from answering anything else."""


def _traceback(socket_path: str, seconds: float) -> list[Json]:
    now = time.monotonic()
    if now - _SILENT.get(socket_path, -_REST) < _REST:
        raise TimeoutError("it did not answer before: something there holds Python's lock")
    try:
        answer = worker_socket.ask_worker(socket_path, "dump_traceback", seconds)
    except TimeoutError:
        _SILENT[socket_path] = now
        raise
    return faulthandler_stacks.parse_faulthandler(answer.decode("utf-8", "replace"))


def _left(end: float) -> float:
    """Seconds for one way. Raises TimeoutError where none are left."""
    left = min(_SHARE, end - time.monotonic())
    if left <= 0:
        raise TimeoutError("there was no time left for it")
    return left


def _with_native(pid: int, plain: Json, end: float) -> Reading:
    found = pyspy_stacks.read_native_stack(pid, end)
    if not isinstance(found, pyspy_stacks.Failure):
        return Reading((plain, found))
    gone = found.kind is Kind.GONE
    return Reading((plain,), () if gone else (_unread(pid, pyspy_stacks.NATIVE, found),))


def _unread(pid: int, source: str, failure: pyspy_stacks.Failure) -> UnreadSource:
    reason, remedy = failure.kind.value, _REMEDIES.get(failure.kind, "")
    if failure.kind is Kind.DENIED:
        reason, remedy = ptrace_permission.explain_denial(pid)
    elif failure.text:
        reason = f"{reason}: {failure.text}"
    return UnreadSource(pid, source, reason, remedy)


_REMEDIES = {
    Kind.ABSENT: "`pip install py-spy` into the Python that runs `mgpu-doctor`",
    Kind.UNSTARTED: "see whether `py-spy --version` works, and what `ulimit -a` allows",
    Kind.FOREIGN: "look again once it has started, or with a newer py-spy: `pip install -U py-spy`",
    Kind.LATE: "look again when the machine is less busy",
    Kind.TORN: "look again; if it stays so, `pip install -U py-spy`",
}


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
