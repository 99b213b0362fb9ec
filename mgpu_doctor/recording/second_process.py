"""Shares numbered pieces of work with a second process, if a second core is free.

The second process is forked and takes pieces from the same queue. It puts the results into a file
that both have open, and reports them through a pipe. If it is killed, the parent does the pieces it
did not report. The pickles are safe to load: the file has no name and only this user can access
it."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar, cast

from mgpu_doctor.recording.column_file import ColumnFile

Result = TypeVar("Result")
Whole_co = TypeVar("Whole_co", covariant=True)
Begin: TypeAlias = Callable[["ColumnFile | None"], Callable[[int], Result]]
"""Called once in each process; returns what does the piece with a number. It may put columns into
the file of its process, if there is one."""

MANY_CELLS = 2_000_000
"""Numbers from which a second process pays: their medians take 20 ms. A choice."""
PIECES = 40
"""Calls are divided into about so many pieces."""
MOST_PIECES = 32_768
"""Their numbers fit into the pipe's buffer."""
_NUMBER = struct.Struct("=H")
_REPORT = struct.Struct("=HQQ")
"""Number of a piece; offset and length of its pickled result in the file."""
MOST_AT_ONCE = 1000
"""Reports that are read at once."""
_THIS = 0
_second: int | None = None
"""The pid of the second process, `_THIS` within it; None: there is none."""
_needed_next: set[str] = set()
"""Modules to load while a second process works."""


@contextlib.contextmanager
def sharing(
    count: int, begin: Begin[Result]
) -> Iterator[Callable[[], Iterator[tuple[int, Result]]]]:
    """A function that yields the number and the result of every piece, as they are done. A second
    process begins at once; this one loads the modules that are needed next, and joins it when it
    asks for the first result."""
    with contextlib.ExitStack() as opened:
        helper = _begun(count, begin, opened) if may_fork() and count <= MOST_PIECES else None
        while helper is not None and _needed_next:
            importlib.import_module(_needed_next.pop())
        yield lambda: _together(count, begin, helper)


@dataclass(frozen=True, eq=False, slots=True)
class Divided(Generic[Whole_co]):
    """Work in pieces that do not depend on each other. Whoever makes the calls combines what they
    return, in order."""

    calls: Sequence[Callable[[], Any]]
    combine: Callable[[list[Any]], Whole_co]

    @classmethod
    def in_one(cls, call: Callable[[], Whole_co]) -> Divided[Whole_co]:
        """Work that is not divided."""
        return cls([call], lambda results: cast("Whole_co", results[0]))


class Results:
    """The results of several works. They can be had after the second process has ended, too, if
    `wait` was called before."""

    def __init__(self, works: Sequence[Divided[Any]], read: Callable[[], list[Any]]) -> None:
        self._works = works
        self._read = read
        self._results: list[Any] | None = None

    def of(self, work: Divided[Whole_co]) -> Whole_co:
        """Returns the result of one of the works. Raises what one of its calls raised."""
        first = sum(len(before.calls) for before in takewhile(lambda w: w is not work, self._works))
        results = self.wait()[first : first + len(work.calls)]
        for result in results:
            if isinstance(result, _Failed):
                raise result.error
        return work.combine(results)

    def wait(self) -> list[Any]:
        """Does the rest of all works, waits for the second process, and returns what all calls
        returned."""
        if self._results is None:
            self._results = self._read()
        return self._results


@dataclass(frozen=True)
class _Failed:
    """What a call raised: it is raised again by whoever needs its result, and by nobody else."""

    error: Exception


def _attempt(call: Callable[[], Result]) -> Result | _Failed:
    try:
        return call()
    except Exception as error:
        return _Failed(error)


@contextlib.contextmanager
def sharing_works(works: Sequence[Divided[Any]], cells: int) -> Iterator[Results]:
    """The results of these works, which a second process begins at once. If they go through fewer
    than `MANY_CELLS` numbers, all is done here."""
    calls = [partial(_attempt, call) for work in works for call in work.calls]
    if not calls or cells < MANY_CELLS:
        yield Results(works, lambda: [call() for call in calls])
        return
    at_once = max(1, len(calls) // PIECES)
    pieces = [calls[at : at + at_once] for at in range(0, len(calls), at_once)]
    with sharing(len(pieces), lambda _: lambda number: [call() for call in pieces[number]]) as rest:
        yield Results(
            works, lambda: [result for piece in in_order(dict(rest())) for result in piece]
        )


def in_order(results: Mapping[int, Result]) -> list[Result]:
    """Returns numbered results by their numbers."""
    return [results[number] for number in sorted(results)]


def call_all(calls: Sequence[Callable[[], Result]], cells: int) -> list[Result]:
    """Returns the results of the calls; of many `cells`, a second process makes some of them."""
    work = Divided(calls, list[Result])
    with sharing_works([work], cells) as results:
        return results.of(work)


def load_meanwhile(module: str) -> None:
    """Has a module that is needed later loaded as soon as a second process shares the work, which
    then does more of it: half the time of loading is saved. Without one, nothing is loaded."""
    _needed_next.add(module)


def may_fork() -> bool:
    """Returns whether a second core is free, and no other thread runs, whose locks a child would
    inherit. A third process would save no time and take memory."""
    if _second is not None and (_second == _THIS or not _has_ended(_second)):
        return False
    return threading.active_count() == 1 and len(os.sched_getaffinity(0)) > 1


def _has_ended(child: int) -> bool:
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # whoever began this process ignores SIGCHLD: no child is kept
        return True


class _Helper:
    """The second process, seen from this one."""

    def __init__(self, queue: int, reports: int, file: ColumnFile) -> None:
        self.queue = queue
        """A pipe with the numbers of the remaining pieces."""
        self._reports = reports
        """A pipe with the child's reports. They are written and read in whole."""
        self._file = file

    def finished(self, *, all_of_them: bool = False) -> Iterator[tuple[int, Any]]:
        """Yields number and result of the pieces that the child finished since the last call, or
        waits until it has ended."""
        os.set_blocking(self._reports, all_of_them)
        with contextlib.suppress(BlockingIOError):
            while raw := os.read(self._reports, _REPORT.size * MOST_AT_ONCE):
                for number, place, length in _REPORT.iter_unpack(raw):
                    yield number, _Unpickler(self._file.read(place, length), self._file).load()


def _begun(count: int, begin: Begin[Any], opened: contextlib.ExitStack) -> _Helper | None:
    """Starts the second process; None if disk space, descriptors or processes ran out."""
    global _second
    try:
        file = ColumnFile()
        queue, fill = os.pipe()
        opened.callback(os.close, queue)
        with open(fill, "wb") as numbers:
            numbers.write(b"".join(map(_NUMBER.pack, range(count))))
        messages, report = os.pipe()
        opened.callback(os.close, messages)
        with open(report, "wb", buffering=0):
            earlier, _second = _second, os.fork()
            if _second == _THIS:
                _help(begin, queue, file, report)
    except OSError:
        return None
    opened.callback(_end, _second, earlier)
    return _Helper(queue, messages, file)


def _end(child: int, earlier: int | None) -> None:
    """Ends the second process, if this one was interrupted before it ended by itself."""
    global _second
    _second = earlier
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # as in `_has_ended`
        if not _has_ended(child):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _together(
    count: int, begin: Begin[Result], helper: _Helper | None
) -> Iterator[tuple[int, Result]]:
    """Yields the results of both processes. Pieces that the child did not finish are done here."""
    work, left = begin(_new_file()), set(range(count))
    if helper is not None:
        for number in _taken(helper.queue):
            yield number, work(number)
            left.discard(number)
            for finished in helper.finished():
                left.discard(finished[0])
                yield finished
        for finished in helper.finished(all_of_them=True):
            left.discard(finished[0])
            yield finished
    for number in sorted(left):
        yield number, work(number)


def _new_file() -> ColumnFile | None:
    try:
        return ColumnFile()
    except OSError:  # then everything stays in memory
        return None


def _taken(queue: int) -> Iterator[int]:
    """Yields numbers of pieces until none is left. A read from the pipe gives a complete number to
    exactly one of the processes."""
    while raw := os.read(queue, _NUMBER.size):
        yield _NUMBER.unpack(raw)[0]


def _help(begin: Begin[Any], queue: int, file: ColumnFile, report: int) -> NoReturn:
    """The child's work. It prints nothing, even if it fails."""
    try:
        for asked in (signal.SIGINT, signal.SIGTERM):
            signal.signal(asked, signal.SIG_DFL)
        work = begin(file)
        for number in _taken(queue):
            raw = io.BytesIO()
            _Pickler(raw, 5).dump(work(number))
            place = file.append(raw.getbuffer())
            os.write(report, _REPORT.pack(number, place, raw.tell()))
    finally:
        os._exit(0)


class _Pickler(pickle.Pickler):
    """The child's columns lie in the file that both processes have open."""

    def persistent_id(self, value: object) -> object:
        return "file" if isinstance(value, ColumnFile) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes, file: ColumnFile) -> None:
        super().__init__(io.BytesIO(raw))
        self._file = file

    def persistent_load(self, _: object) -> ColumnFile:
        return self._file
