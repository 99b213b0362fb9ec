"""Reads traces of PyTorch's profiler (Kineto, Chrome's trace-event JSON) as they stream by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from mgpu_probes.outside.traces.trace_chunks import Pieces
from mgpu_probes.outside.traces.trace_columns import (
    EVENT_DTYPE,
    Events,
    Kind,
    NotATraceError,
    RawTrace,
)
from mgpu_probes.outside.untrusted_files import Budget, within_budget

KINDS = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "Memset": Kind.SET,
    "cuda_runtime": Kind.LAUNCH,
    "cuda_driver": Kind.LAUNCH,
    "Runtime": Kind.LAUNCH,
    "cpu_op": Kind.OPERATOR,
    "Operator": Kind.OPERATOR,
    "user_annotation": Kind.NOTE,
}
"""By category; capitals are those of torch before 1.12. Python's own functions and counters are
passed over."""
_BETWEEN = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
MOST_EVENTS = 32 << 20
"""Kept of one file; 45 bytes each."""
MOST_NAMES = 1 << 17
MOST_NAME = 300
NAME = 4
"""Memory of a name, in objects of the budget."""
EVENT = 16
"""Objects that an event costs, which takes 140 bytes until it is examined: torch writes at least
100 bytes for each, so that an honest file earns 25."""
MOST_THREADS = 1 << 16
LAST, LONGEST = 9e15, 1e12
"""Microseconds: the latest plausible time since the epoch, and the longest plausible duration."""
MOST_HELD = 2 << 20
"""Bytes."""
MOST_AFTER = 4096
_CLOSED = re.compile(rb"\}\s*(\])[^\[\]]*\}\s*$")
"""The end of a file, if one of its events is damaged."""
_WIDE = (1 << 31) - 1
_LONG = (1 << 62) - 1


class Args(msgspec.Struct, gc=False):
    stream: int = -1
    correlation: int = -1
    sequence: int = msgspec.field(name="Seq", default=-1)
    group: str = msgspec.field(name="Process Group Name", default="")
    members: str = msgspec.field(name="Process Group Ranks", default="")


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = -1.0
    dur: float = 0.0
    args: Args = msgspec.field(default_factory=Args)


class Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None


class Head(msgspec.Struct):
    distributed: Distributed | None = msgspec.field(name="distributedInfo", default=None)
    host: str | None = msgspec.field(name="host_name", default=None)


_events = msgspec.json.Decoder(list[Event])
_event = msgspec.json.Decoder(Event)
_head = msgspec.json.Decoder(Head)
WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
"""Exceptions that malformed input may raise."""


def head_of(raw: bytes) -> Head:
    """The header's facts; all unknown if it is malformed."""
    try:
        return _head.decode(raw)
    except WRONG:
        return Head()


def events_of(raw: bytes) -> list[Event]:
    """Events with commas between them. Raises one of `WRONG`."""
    return _events.decode(b"[" + raw + b"]")


def one_by_one(raw: bytes) -> Iterator[Event | None]:
    """The events of a piece with damaged events: None for each of those."""
    held: bytes | None = None
    for part in _BETWEEN.split(raw):
        if held is not None:
            # The name of an event may contain what looks like the border of two events.
            whole = _event_of(held + b"," + part)
            yield whole
            held = None
            if whole is not None:
                continue
        found = _event_of(part)
        if found is None:
            held = part
        else:
            yield found
    if held is not None:
        yield None


def _event_of(part: bytes) -> Event | None:
    """The event. Bytes that are not text are replaced: names of kernels may hold any bytes."""
    try:
        return _event.decode(part.decode("utf-8", "replace").encode())
    except WRONG:
        return None


def read_trace(path: Path, root: Path | None = None) -> RawTrace:
    """The events of a trace file. `root`: the folder that the user named, if not the file. Raises
    NotATraceError, also if it cannot be opened."""
    try:
        with within_budget() as budget:
            return _read(Pieces(path, root), budget)
    except OSError as error:
        raise NotATraceError(f"{path.name} cannot be read ({error.strerror})") from None


def _read(pieces: Pieces, budget: Budget) -> RawTrace:
    columns = _Columns(budget)
    waiting: bytes | None = None
    for piece in pieces:
        if waiting is not None:
            columns.add_piece(waiting)
        waiting = piece
        if columns.full:
            break
    head = head_of(pieces.head)
    cut = pieces.cut
    if columns.full:
        cut = f"only its first {MOST_EVENTS} events were read"
    elif waiting is not None:
        last, after = _split_end(waiting)
        columns.add_piece(last)
        if after is None:
            cut = cut or "the file ends early"
        elif head.distributed is None:
            later = head_of(b"{" + after.lstrip(b" \t\r\n,"))
            head = Head(later.distributed, later.host or head.host)
    return columns.trace(head, cut)


def _split_end(piece: bytes) -> tuple[bytes, bytes | None]:
    """The last events, and what follows their list; None: the list does not end."""
    text = "[" + piece.decode("utf-8", "surrogateescape")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        closed = _CLOSED.search(piece, max(0, len(piece) - MOST_AFTER))
        return (piece[: closed.start(1)], piece[closed.end(1) :]) if closed else (piece, None)
    return (
        text[1 : end - 1].encode("utf-8", "surrogateescape"),
        text[end:].encode("utf-8", "surrogateescape"),
    )


class _Names(dict[str, int]):
    """Indices of names, in order of appearance; the first one for all beyond the bound."""

    def __missing__(self, name: str) -> int:
        name = name[:MOST_NAME]
        if name in self:
            return self[name]
        if len(self) >= MOST_NAMES:
            return 0
        self[name] = len(self)
        return self[name]


class _Threads(dict[int | str, int]):
    """Numbers of threads, in order of appearance; the first one for all beyond the bound."""

    def __missing__(self, thread: int | str) -> int:
        found = len(self) if len(self) < MOST_THREADS else 0
        if found or not self:
            self[thread] = found
        return found


class _Columns:
    """The columns of a trace, extended by one piece at a time."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._parts: list[Events] = []
        self._count = 0
        self._names = _Names({"": 0})
        self._threads = _Threads()
        self._damaged = 0
        self._held: bytes | None = None

    @property
    def full(self) -> bool:
        return self._count >= MOST_EVENTS

    def add_piece(self, raw: bytes) -> None:
        """Adds the events of a piece. A malformed piece is joined with the next one: it may end
        in the middle of an event whose name looks like a border."""
        whole = raw if self._held is None else self._held + b"," + raw
        self._held = None
        try:
            self._add(events_of(whole))
        except WRONG:
            if len(whole) > MOST_HELD:
                self._salvage(whole)
            else:
                self._held = whole

    def _salvage(self, raw: bytes) -> None:
        known = list(one_by_one(raw))
        self._damaged += known.count(None)
        self._add([one for one in known if one is not None])

    def _add(self, events: list[Event]) -> None:
        kept = [
            event
            for event in events
            if event.ph == "X" and event.cat in KINDS and 0 <= event.ts < LAST
        ]
        args = [one.args for one in kept]
        names, threads = self._names, self._threads
        before = len(names)
        rows = np.empty(len(kept), EVENT_DTYPE)
        begin = np.array([one.ts for one in kept], float)
        lasted = np.clip(np.array([one.dur for one in kept], float), 0, LONGEST)
        rows["start"] = np.rint(begin * 1e3)
        rows["length"] = np.rint(lasted * 1e3)
        rows["kind"] = [KINDS[one.cat] for one in kept]
        rows["name"] = [names[one.name] for one in kept]
        rows["thread"] = [threads[one.tid] for one in kept]
        rows["stream"] = _numbers([argument.stream for argument in args], _WIDE)
        rows["correlation"] = _numbers([argument.correlation for argument in args], _LONG)
        rows["sequence"] = _numbers([argument.sequence for argument in args], _WIDE)
        rows["group"] = [names[f"{arg.group} {arg.members}"] if arg.group else -1 for arg in args]
        self._budget.take(EVENT * len(rows) + NAME * (len(names) - before))
        self._parts.append(rows)
        self._count += len(rows)

    def trace(self, head: Head, cut: str | None) -> RawTrace:
        if self._held is not None:
            self._salvage(self._held)
        events = np.concatenate(self._parts) if self._parts else np.empty(0, EVENT_DTYPE)
        self._parts.clear()
        distributed = head.distributed
        return RawTrace(
            names=tuple(self._names),
            events=events[np.argsort(events["start"], kind="stable")],
            rank=distributed.rank if distributed else None,
            world_size=distributed.world_size if distributed else None,
            backend=distributed.backend if distributed else None,
            host=head.host,
            cut=cut,
            damaged=self._damaged,
        )


def _numbers(values: list[int], most: int) -> npt.NDArray[np.int64]:
    """The numbers as an array, with -1 for values out of range."""
    try:
        found = np.array(values, np.int64)
    except OverflowError:
        found = np.array([value if abs(value) <= most else -1 for value in values], np.int64)
    found[(found < 0) | (found > most)] = -1
    return found
