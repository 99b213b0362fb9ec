"""Stacks of one process from the best source available, and why better sources failed."""

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
"""Seconds for a source that answers in milliseconds or never, if Python's lock is held."""
_REST = 60.0
"""Seconds until a socket that did not answer is queried again."""
_INSTRUMENT = "start the job with `mgpu-doctor run -- COMMAND`: then its ranks show their stacks"
_PERMIT = "let py-spy read the process instead: see what it needs with `mgpu-doctor check`"


@dataclass(frozen=True, slots=True)
class Aid:
    """How to read an instrumented rank's stacks, as its process metadata says."""

    worker_socket: str | None = None
    """Path of its worker server's unix socket."""
    dump_file: str | None = None
    """File into which it writes its stacks on `dump_signal`."""
    dump_signal: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`stacks`: as JSON; two if native frames were requested."""

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
    """The stacks of a process. `end`: deadline on the monotonic clock, in seconds. `started`: the
    process's start ticks.

    There are no stacks of a process that has ended or runs no Python; only the latter is reported.
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
        unread.append(UnreadSource(pid, source, "its stacks had no frames", remedy))
    return Reading(unread=tuple(unread))


def _other_ways(
    pid: int, aid: Aid, end: float, started: int | None
) -> Iterator[tuple[str, Callable[[], list[Json]]]]:
    def by_socket() -> list[Json]:
        if aid.worker_socket is None:
            raise OSError("the process has no known socket")
        return _traceback(aid.worker_socket, _left(end))

    def by_signal() -> list[Json]:
        if aid.dump_file is None or aid.dump_signal is None:
            raise OSError("the process has not announced a signal for its stacks")
        by = time.monotonic() + _left(end)
        return faulthandler_stacks.request_stacks(
            pid, aid.dump_file, aid.dump_signal, by, started=started
        )

    yield WORKER, by_socket
    yield FAULTHANDLER, by_signal


_SILENT: dict[str, float] = {}
"""Sockets that returned no traceback, and when: Python's lock is held there. A waiting request
keeps the server's thread, or one of its few threads, from answering anything else."""


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
    """Seconds for one source. Raises TimeoutError if none are left."""
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
    Kind.FOREIGN: "try again once it has started, or with a newer py-spy: `pip install -U py-spy`",
    Kind.LATE: "try again when the machine is less busy",
    Kind.TORN: "try again; if it still fails, `pip install -U py-spy`",
}


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
