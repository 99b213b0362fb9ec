"""Reads a black box for another host: only what is new since a cursor.

Records of rings are sent by sequence number, each validated here, so that a gap in the numbers is
exactly what was lost. The other areas are small and change rarely: their changed chunks are sent.
The header comes last, because it makes visible what was sent before."""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mgpu_probes.inprocess import layout
from mgpu_probes.outside.node.channel_frames import MOST_BODY, pack_frame

MOST_BYTES = 64 << 20
"""Bytes of the largest box that the format allows are fewer."""
CHUNK = 4096
AREAS_EVERY = 10.0
"""Seconds after which areas are compared in any case: the open window of the history grows."""
_SELDOM = (
    layout.STRINGS_USED,
    layout.BIRTH_SLOT,
    layout.HISTORY_ACTIVE,
    *layout.HISTORY_CURSOR,
    layout.STATE,
    layout.WORDS_USED,
)
"""Words of the header that announce changes in the areas."""


_ZEROS = {CHUNK: zlib.crc32(bytes(CHUNK))}
"""A new copy is full of zeros, and so are most areas."""


class NoBox(ValueError):  # noqa: N818 - a noun, like BadBox
    """The file is not a box that can be sent."""


class _Ring(NamedTuple):
    name: str
    cursor_at: int
    offset: int
    capacity: int
    size: int


class BoxStream:
    """An open box. Raises OSError and NoBox."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        self._fd = os.open(path, flags)
        try:
            self.status = os.fstat(self._fd)
            if not stat.S_ISREG(self.status.st_mode) or self.status.st_size > MOST_BYTES:
                raise NoBox("it is no regular file of a box's size")
            header = os.pread(self._fd, layout.HEADER_SIZE, 0)
            self._rings, self._areas = _read_geometry(header, self.status.st_size)
        except BaseException:
            os.close(self._fd)
            raise
        self.first_header = header
        """As it was when the box was opened: it says where everything is."""
        fields = layout.IDENTITY.unpack_from(header)
        self.pid, self.start_ticks = int(fields[17]), int(fields[19])
        self.identity = f"{self.pid}.{self.start_ticks}.{fields[20]}.{self.status.st_ino}"
        """Differs between two boxes of one name."""
        self._sent = dict.fromkeys((ring.name for ring in self._rings), 0)
        self._crcs: dict[int, int] = {}
        """Offset of a chunk -> CRC of what the reader has there."""
        self._unsent_crcs: Mapping[int, int] = _ZEROS
        """Bytes of a chunk -> CRC of what the reader has if nothing was sent."""
        self._header = b""
        self._seldom: tuple[int, ...] = ()
        self._areas_at = 0.0

    def resume(self, cursors: Mapping[str, int]) -> None:
        """Continues after the records that the reader has: ring -> newest sequence number. Which
        chunks it has is unknown: all are sent."""
        self._unsent_crcs = {}
        self._sent.update({name: at for name, at in cursors.items() if name in self._sent})

    def close(self) -> None:
        os.close(self._fd)

    def poll(self, number: int, *, over: bool = False) -> Iterator[bytes]:
        """Yields frames with what is new. `number`: what the frames call this box. `over`: its
        process has ended, perhaps between a record and the cursor that announces it."""
        header = os.pread(self._fd, layout.HEADER_SIZE, 0)
        now = time.monotonic()
        seldom = tuple(_word(header, at) for at in _SELDOM)
        areas_due = seldom != self._seldom or now - self._areas_at >= AREAS_EVERY
        if len(header) < layout.HEADER_SIZE or (header == self._header and not (areas_due or over)):
            return
        for ring in self._rings:
            yield from self._new_records(number, ring, _word(header, ring.cursor_at) + over)
        if areas_due:
            self._seldom, self._areas_at = seldom, now
            for offset, size in self._areas:
                yield from self._changed_chunks(number, offset, size)
        if header != self._header:
            self._header = header
            yield pack_frame("header", _pack(header), box=number)

    def _new_records(self, number: int, ring: _Ring, newest: int) -> Iterator[bytes]:
        sent = self._sent[ring.name]
        first = max(sent + 1, newest - ring.capacity + 1)
        if newest < first or newest >= 1 << 62:
            return
        most = MOST_BODY // ring.size
        while first <= newest:
            slot = (first - 1) % ring.capacity
            count = min(newest - first + 1, ring.capacity - slot, most)
            raw = os.pread(self._fd, count * ring.size, ring.offset + slot * ring.size)
            yield from self._runs(number, ring, first, raw)
            first += count

    def _runs(self, number: int, ring: _Ring, first: int, raw: bytes) -> Iterator[bytes]:
        """Yields the valid records, each run of subsequent ones in one frame."""
        begin: int | None = None
        count = len(raw) // ring.size
        for index in range(count + 1):
            valid = index < count and _is_valid(raw, index * ring.size, ring.size, first + index)
            if valid and begin is None:
                begin = index
            elif not valid and begin is not None:
                self._sent[ring.name] = first + index - 1
                records = raw[begin * ring.size : index * ring.size]
                yield pack_frame(
                    "records", records, box=number, ring=ring.name, first=first + begin
                )
                begin = None

    def _changed_chunks(self, number: int, offset: int, size: int) -> Iterator[bytes]:
        raw = os.pread(self._fd, size, offset)
        for at in range(0, len(raw), CHUNK):
            chunk = raw[at : at + CHUNK]
            crc = zlib.crc32(chunk)
            if self._crcs.get(offset + at, self._unsent_crcs.get(len(chunk))) != crc:
                self._crcs[offset + at] = crc
                yield pack_frame("chunk", _pack(chunk), box=number, at=offset + at)


def _read_geometry(header: bytes, size: int) -> tuple[list[_Ring], list[tuple[int, int]]]:
    """The rings of a box and its other areas (offset, bytes). Raises NoBox."""
    if len(header) < layout.HEADER_SIZE or not header.startswith(layout.MAGIC):
        raise NoBox("it is not a black box, or not complete yet")
    fields = layout.IDENTITY.unpack_from(header)
    if fields[1] != layout.VERSION_MAJOR or fields[3] != layout.BYTE_ORDER_MARK:
        raise NoBox("it is of another version")
    birth, birth_slot, strings, strings_size, steps, step_count = fields[5:11]
    events, event_count, history, history_count, words, words_size = fields[11:17]
    device, device_count = (_word(header, at) for at in (layout.DEVICE_AREA, layout.DEVICE_RECORDS))
    rings = [
        _Ring("steps", layout.STEP_CURSOR, steps, step_count, layout.STEP_SIZE),
        _Ring("events", layout.EVENT_CURSOR, events, event_count, layout.EVENT_SIZE),
        _Ring("device", layout.DEVICE_CURSOR, device, device_count, layout.DEVICE_SIZE),
    ]
    rings = [ring for ring in rings if ring.offset and ring.capacity]
    areas = [
        (birth, 2 * birth_slot),
        (strings, strings_size),
        (words, words_size),
        (history, 2 * history_count * layout.STEP_SIZE),
    ]
    ends = [offset + length for offset, length in areas]
    ends += [ring.offset + ring.capacity * ring.size for ring in rings]
    if max(ends) > size:
        raise NoBox("its areas are larger than the file")
    return rings, areas


def _is_valid(raw: bytes, at: int, size: int, sequence: int) -> bool:
    """Whether the record at this place is whole and has this sequence number."""
    if struct.unpack_from("=Q", raw, at)[0] != sequence:
        return False
    (crc,) = struct.unpack_from("=I", raw, at + size - 4)
    return bool(zlib.crc32(raw[at : at + size - 4]) == crc)


def _pack(data: bytes) -> bytes:
    """Compressed with little memory: a page of it would otherwise take most of its time to get
    it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 10, 2)
    return packer.compress(data) + packer.flush()


def _word(header: bytes, at: int) -> int:
    return int(struct.unpack_from("=Q", header, at)[0]) if len(header) >= at + 8 else 0
