"""The parts of a trace event that are wanted; msgspec passes over all others without a copy."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from mgpu_probes.outside.traces.facts import Kind

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
"""What a stranger's text may raise."""


def head_of(raw: bytes) -> Head:
    """Nothing known where it cannot be understood."""
    try:
        return _head.decode(raw)
    except WRONG:
        return Head()


def events_of(raw: bytes) -> list[Event]:
    """Events with commas between them. Raises one of `WRONG`."""
    return _events.decode(b"[" + raw + b"]")


def one_by_one(raw: bytes) -> Iterator[Event | None]:
    """The same, of which some are damaged: None for each of these."""
    held: bytes | None = None
    for part in _BETWEEN.split(raw):
        if held is not None:
            # What looks like the border of two events may stand in a name of one.
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
    """Bytes that are no text are replaced: names of a stranger's kernels may hold any."""
    try:
        return _event.decode(part.decode("utf-8", "replace").encode())
    except WRONG:
        return None
