"""The first 4096 bytes of a black box, checked: everything later trusts these offsets."""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass
from functools import lru_cache

import msgspec
from mgpu_probes.inprocess import layout

MOST_RECORDS = 1 << 16
MOST_BYTES = 1 << 18
"""The most bytes of an area of text. A bound for hostile files; the layout's own sizes are far
below."""
MOST_OFFSET = (1 << 32) - 1
"""Alignment of an area's start."""


class BadBox(ValueError):  # noqa: N818 - a noun, like NotARecording: it says what the file is
    """A file that cannot be read as a black box. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where things are in the file, in bytes and in records."""

    birth: int
    birth_slot: int
    strings: int
    strings_size: int
    steps: int
    step_capacity: int
    events: int
    event_capacity: int
    history: int
    history_capacity: int
    words: int
    words_size: int
    device: int
    """0: no ring of device times"""
    device_capacity: int

    def areas(self) -> list[tuple[int, int]]:
        """Returns the first and last + 1 byte of each area."""
        step = layout.STEP_SIZE
        device_size = self.device_capacity * layout.DEVICE_SIZE
        return [
            (self.birth, self.birth + 2 * self.birth_slot),
            (self.strings, self.strings + self.strings_size),
            (self.steps, self.steps + self.step_capacity * step),
            (self.events, self.events + self.event_capacity * layout.EVENT_SIZE),
            (self.history, self.history + 2 * self.history_capacity * step),
            (self.words, self.words + self.words_size),
            *([(self.device, self.device + device_size)] if self.device else ()),
        ]


class Identity(msgspec.Struct, frozen=True):
    """The process that wrote the box. None: unknown."""

    version: tuple[int, int]
    pid: int
    parent_pid: int
    start_ticks: int | None
    """Start of the process in clock ticks since boot."""
    realtime_ns: int
    monotonic_ns: int
    boot_id: str | None
    rank: int | None
    local_rank: int | None
    world_size: int | None
    attempt: int
    stage: int | None
    stages: int | None
    host: str


def geometry(header: bytes) -> Geometry:
    """Returns the geometry. Raises BadBox if this version cannot read the box."""
    _check_kind(header)
    fields = layout.IDENTITY.unpack_from(header)
    if fields[4] != layout.HEADER_SIZE:
        raise BadBox(f"it says that its header has {fields[4]} bytes")
    device = word(header, layout.DEVICE_AREA), word(header, layout.DEVICE_RECORDS)
    return _checked((*fields[5:17], *device))


@lru_cache(maxsize=16)
def _checked(fields: tuple[int, ...]) -> Geometry:
    """Returns the checked geometry, which all boxes of one writer share."""
    geometry = Geometry(*fields)
    if not 0 < geometry.step_capacity <= MOST_RECORDS:
        raise BadBox(f"it says that it holds {geometry.step_capacity} steps")
    if max(geometry.event_capacity, geometry.history_capacity) > MOST_RECORDS:
        raise BadBox("it claims to contain more events or history than any box does")
    if geometry.device > MOST_OFFSET or geometry.device_capacity > MOST_RECORDS:
        raise BadBox("it claims to contain more device times than any box does")
    if max(geometry.birth_slot, geometry.strings_size, geometry.words_size) > MOST_BYTES:
        raise BadBox("it claims to contain more text than any box does")
    last = layout.HEADER_SIZE
    for first, end in sorted(geometry.areas()):
        if first < last:
            raise BadBox("its areas overlap")
        last = end
    return geometry


def _check_kind(header: bytes) -> None:
    if not header or not header.startswith(layout.MAGIC[: len(header)]):
        empty = not header.strip(b"\x00")
        raise BadBox("it is still being created or empty" if empty else "it is not a black box")
    if len(header) < layout.HEADER_SIZE:
        raise BadBox("its header is truncated")
    _, major, _, mark, *_ = layout.IDENTITY.unpack_from(header)
    if mark != layout.BYTE_ORDER_MARK:
        raise BadBox(
            "it was written on a machine with another byte order; read it on such a machine"
        )
    if major > layout.VERSION_MAJOR:
        raise BadBox(
            f"it was written by a newer version (format {major}, this one reads "
            f"{layout.VERSION_MAJOR}): upgrade mgpu-doctor"
        )
    if major < layout.VERSION_MAJOR:
        raise BadBox(f"its format {major} is no longer read")


def identity(header: bytes, *, trusted: bool) -> Identity:
    """Returns the identity. `trusted`: whether the generations agreed. If not, the process was
    killed while it changed its rank, and the changing values are unknown."""
    fields = layout.IDENTITY.unpack_from(header)
    pid, parent, ticks, wall, monotonic, boot = fields[17:23]
    rank, local, world, attempt, stage, stages = (
        number if trusted and number >= 0 else None for number in fields[23:29]
    )
    return Identity(
        version=(fields[1], fields[2]),
        pid=pid,
        parent_pid=parent,
        start_ticks=ticks or None,
        realtime_ns=wall,
        monotonic_ns=monotonic,
        boot_id=_boot_id(boot) if any(boot) else None,
        rank=rank,
        local_rank=local,
        world_size=world,
        attempt=attempt or 0,
        stage=stage,
        stages=stages,
        host=fields[29].split(b"\x00")[0].decode("utf-8", "replace"),
    )


@lru_cache(maxsize=16)
def _boot_id(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))


def word(header: bytes | memoryview, offset: int) -> int:
    """Returns the 64-bit word at `offset`."""
    return int.from_bytes(header[offset : offset + 8], sys.byteorder)


def stable(before: int, after: bytes) -> bool:
    """Returns whether the identity in the header `after` is consistent. `before`: the word
    GENERATION_LAST of a header that was read earlier."""
    first = word(after, layout.GENERATION_FIRST)
    return 0 < first == before == word(after, layout.GENERATION_LAST)


def read_at(fd: int, offset: int, size: int) -> bytes:
    """Returns up to `size` bytes, fewer at the end of the file. Not mapped: if a mapped file is
    truncated, its reader gets SIGBUS."""
    whole = os.pread(fd, size, offset)
    if len(whole) == size:  # the usual case
        return whole
    parts = []
    while size > 0 and (part := os.pread(fd, size, offset)):
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


class Room:
    """Memory that is used again and again: new memory for each of ten thousand rings of records
    would take longer to map than they take to read."""

    def __init__(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self._used = 0

    def clear(self) -> None:
        """From now on, what was read before may be overwritten."""
        self._used = 0

    def read_at(self, fd: int, offset: int, size: int) -> bytes | memoryview:
        """The same as `read_at`, but the bytes lie here, if there is room."""
        part = self._memory[self._used : self._used + size]
        if len(part) < size or os.preadv(fd, [part], offset) < size:
            return read_at(fd, offset, size)
        self._used += size
        return part
