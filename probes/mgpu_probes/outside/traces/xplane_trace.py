"""Reads profiles of TensorFlow (`*.xplane.pb`) into the columns of a trace.

The messages are few and have kept their numbers since 2020 (tsl/profiler/protobuf/xplane.proto),
so they are decoded here (https://protobuf.dev/programming-guides/encoding), trusting no length
in them. The libraries that can read them (xprof, TensorFlow itself) weigh tens of megabytes, and
would parse an untrusted file in C++. An event belongs to a line (a thread or a stream) of a
plane (the host, or a device); its name is in the plane's table, after the lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mgpu_probes.outside.traces.trace_chunks import open_trace
from mgpu_probes.outside.traces.trace_columns import (
    EVENT_DTYPE,
    Events,
    Kind,
    NotATraceError,
    RawTrace,
)
from mgpu_probes.outside.untrusted_files import Budget, within_budget

VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5
Part = tuple[int, int]
"""Start and end of the content of a field with a length."""
ENDING = ".xplane.pb"
MOST_BYTES = 128 << 20
MOST_EVENTS = 4 << 20
MOST_NAMES = 1 << 17
MOST_NAME = 300
NAME = 3
"""Memory of a name in a table, in objects of the budget."""
MOST_PLANES, MOST_LINES = 1 << 10, 1 << 14
AT_A_TIME = 1 << 16
"""Events that are held as Python's objects."""
LAST = 1 << 61
"""Nanoseconds beyond which a time is invalid."""
HOST, CALLS = "/host:CPU", "/host:CUPTI"
_DEVICE = re.compile(r"/device:GPU:\d+")
_STREAM = re.compile(r"Stream #(\d{1,9})")
_OPERATOR = re.compile(r"[^:\s]+:[A-Za-z_]\w*")
"""`sgd/Mul_3:Mul`: the node's name and what it does. What the runtime does has other names."""
_LAUNCH = re.compile(r"cu(?:da)?[A-Z]")
STEP = "ProfilerStep"
"""The name that PyTorch's profiler gives to steps."""
KERAS_STEP = "multi_step_on_iterator"
FETCH = "IteratorGetNextOp::DoCompute"
Row = tuple[int, int, int, int, int, int, int]
"""Start, length, correlation, name, thread, stream, kind."""


class Broken(ValueError):  # noqa: N818 - says what the message is
    """It does not follow the encoding, or ends early."""


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | Part]]:
    """Numbers of fields and their values: an integer, or where the content stands. Raises `Broken`
    at the first field that is not whole."""
    while at < end:
        tag, at = varint(data, at, end)
        kind = tag & 7
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            size, at = varint(data, at, end)
        elif kind in (WIDE, NARROW):
            size = 8 if kind == WIDE else 4
        else:
            raise Broken
        if size > end - at:
            raise Broken
        yield tag >> 3, (at, at + size)
        at += size


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned integer of at most 64 bits, and what follows it."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            break
    raise Broken


@dataclass(slots=True)
class Plane:
    name: str = ""
    lines: list[Part] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    """Of events, by id."""
    statistics: dict[int, str] = field(default_factory=dict)


def read_xplane(path: Path, root: Path | None = None) -> RawTrace:
    """Of several GPUs of one process the first. `root`: the folder that the user named, if not the
    file. Raises NotATraceError."""
    try:
        with within_budget() as budget:
            return _read(path, root, budget)
    except OSError as error:
        raise NotATraceError(f"{path.name} cannot be read ({error.strerror})") from None


def _read(path: Path, root: Path | None, budget: Budget) -> RawTrace:
    data = _content(path, root)
    host = path.name.removesuffix(ENDING)
    planes: list[Plane] = []
    cut = None
    try:
        for number, value in fields(data, 0, len(data)):
            if number == 1 and isinstance(value, tuple) and len(planes) < MOST_PLANES:
                planes.append(_plane(data, value, budget))
            elif number == 4 and isinstance(value, tuple):
                host = _text(data, value)
    except Broken:
        cut = "the file ends early, or is damaged"
    table = _Table(data, budget)
    devices = sorted(
        plane.name for plane in planes if _DEVICE.fullmatch(plane.name) and plane.lines
    )
    for plane in planes:
        if plane.name in (HOST, CALLS) or plane.name == next(iter(devices), None):
            table.add(plane)
    if len(devices) > 1:
        cut = cut or f"of {len(devices)} GPUs of this process only {devices[0]} was read"
    return table.trace(host, cut)


def _content(path: Path, root: Path | None) -> bytes:
    with open(open_trace(path, root), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise NotATraceError(
                f"{path.name} is larger than {MOST_BYTES >> 20} MiB: profile fewer steps"
            )
        return file.read(size) or b""


def _plane(data: bytes, part: Part, budget: Budget) -> Plane:
    """The plane, up to its first malformed field."""
    plane = Plane()
    with suppress(Broken):
        for number, value in fields(data, *part):
            if not isinstance(value, tuple):
                continue
            if number == 2:
                plane.name = _text(data, value)
            elif number == 3 and len(plane.lines) < MOST_LINES:
                plane.lines.append(value)
            elif number in (4, 5):
                table = plane.names if number == 4 else plane.statistics
                if len(table) < MOST_NAMES:
                    budget.take(NAME)
                    key, name = _entry(data, value)
                    table[key] = name
    return plane


def _entry(data: bytes, part: Part) -> tuple[int, str]:
    """An entry of a table: id and name."""
    key, name = 0, ""
    for number, value in fields(data, *part):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == 2 and isinstance(value, tuple):
            name = next(
                (
                    _text(data, inner)
                    for which, inner in fields(data, *value)
                    if which == 2 and isinstance(inner, tuple)
                ),
                "",
            )
    return key, name


def _text(data: bytes, part: Part) -> str:
    start, end = part
    return data[start : min(end, start + 4 * MOST_NAME)].decode("utf-8", "replace")[:MOST_NAME]


class _Table:
    """Collects the rows of one trace."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._budget = budget
        self._parts: list[Events] = []
        self._names: dict[str, int] = {"": 0}
        self._count = self._thread = self._damaged = 0
        self._numbered = False
        """Whether steps have numbers."""

    def add(self, plane: Plane) -> None:
        for part in plane.lines:
            if self._count >= MOST_EVENTS:
                return
            rows = self._rows(plane, part)
            while some := list(islice(rows, min(AT_A_TIME, MOST_EVENTS - self._count))):
                self._keep(np.array(some, np.int64))
            self._thread += 1

    def _keep(self, rows: npt.NDArray[np.int64]) -> None:
        events = np.zeros(len(rows), EVENT_DTYPE)
        columns = ("start", "length", "correlation", "name", "thread", "stream", "kind")
        for place, column in enumerate(columns):
            events[column] = rows[:, place]
        events["group"] = events["sequence"] = -1
        self._budget.take(len(events))
        self._parts.append(events)
        self._count += len(events)

    def _rows(self, plane: Plane, part: Part) -> Iterator[Row]:
        """The rows of a line; none for lines of a device that repeat others."""
        name, at = "", 0
        with suppress(Broken):
            for number, value in fields(self._data, *part):
                if number == 2 and isinstance(value, tuple):
                    name = _text(self._data, value)
                elif number == 3 and isinstance(value, int):
                    at = value
        found = _STREAM.match(name)
        stream = int(found[1]) if found else -1
        on_device = plane.name not in (HOST, CALLS)
        if on_device and found is None:
            return
        sort = _of_device if on_device else _of_host
        with suppress(Broken):
            for number, event in fields(self._data, *part):
                if number == 4 and isinstance(event, tuple):
                    row = self._row(plane, event, at, stream, sort)
                    if row is not None:
                        yield row

    def _row(
        self, plane: Plane, event: Part, at: int, stream: int, sort: Callable[[str], Kind | None]
    ) -> Row | None:
        which = offset = length = 0
        correlation, step = -1, None
        try:
            for number, value in fields(self._data, *event):
                if number == 4 and isinstance(value, tuple):
                    known, told = self._statistic(plane, value)
                    if known == "step_num":
                        step = told
                    elif known == "correlation_id" and told < 1 << 62:
                        correlation = told
                elif isinstance(value, int):
                    if number == 1:
                        which = value
                    elif number == 2:
                        offset = value
                    elif number == 3:
                        length = value
        except Broken:
            self._damaged += 1
            return None
        name = plane.names.get(which, "")
        kind = Kind.NOTE if step is not None else sort(name)
        start = at + offset // 1000
        if kind is None or start >= LAST or length // 1000 >= LAST - start:
            return None
        if step is not None:
            name, self._numbered = f"{STEP}#{step}", True
        return start, length // 1000, correlation, self._place(name), self._thread, stream, kind

    def _statistic(self, plane: Plane, part: Part) -> tuple[str, int]:
        name, told = "", 0
        for number, value in fields(self._data, *part):
            if isinstance(value, int):
                if number == 1:
                    name = plane.statistics.get(value, "")
                elif number in (3, 4):
                    told = value
        return name, told

    def _place(self, name: str) -> int:
        if name not in self._names and len(self._names) >= MOST_NAMES:
            return 0
        return self._names.setdefault(name, len(self._names))

    def trace(self, host: str, cut: str | None) -> RawTrace:
        events = np.concatenate(self._parts) if self._parts else np.empty(0, EVENT_DTYPE)
        names = list(self._names)
        keras = self._names.get(KERAS_STEP, -1)
        if self._numbered:
            events = events[events["name"] != keras]
        elif keras >= 0:
            names[keras] = STEP
        if self._count >= MOST_EVENTS:
            cut = f"only its first {MOST_EVENTS} events were read"
        return RawTrace(
            names=tuple(names),
            events=events[np.argsort(events["start"], kind="stable")],
            host=host,
            cut=cut,
            damaged=self._damaged,
            framework="tensorflow",
        )


def _of_device(name: str) -> Kind | None:
    if name.startswith("Memcpy"):
        return Kind.COPY
    return Kind.SET if name.startswith("Memset") else Kind.KERNEL


def _of_host(name: str) -> Kind | None:
    """The kind of a host event; None: internal to the runtime."""
    if name in (FETCH, KERAS_STEP):
        return Kind.NOTE
    if _OPERATOR.fullmatch(name):
        return Kind.OPERATOR
    return Kind.LAUNCH if _LAUNCH.match(name) else None
