"""Copies of black boxes of other hosts, which grow as records arrive and are read like any box.

What arrives is untrusted: it is only ever written into the file of its box, within bounds. Whoever
reads the copy validates it like any other box."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from mgpu_probes.inprocess import layout
from mgpu_probes.outside.node.box_stream import CHUNK, MOST_BYTES
from mgpu_probes.outside.node.channel_frames import BadStream

from mgpu_doctor.recording.boxheader import BadBox, geometry, identity

_REALTIME_AT, _BOOT_AT, _BOOT_SIZE = 88, 104, 16
"""Offsets of the wall clock and of the boot id in the header."""


class BoxMirror:
    """The copy of one box at `path`, which appears with its first header. `header`: of the box at
    some moment. `source`: its path on its host. `ahead`: seconds by which the clock of its host is
    ahead of this machine's. Raises BadBox and OSError; its methods raise BadStream."""

    def __init__(self, path: Path, source: str, header: bytes, ahead: float = 0.0) -> None:
        found = geometry(header)
        self._rings = {
            "steps": (found.steps, found.step_capacity, layout.STEP_SIZE),
            "events": (found.events, found.event_capacity, layout.EVENT_SIZE),
            "device": (found.device, found.device_capacity, layout.DEVICE_SIZE),
        }
        self._end = max(last for _, last in found.areas())
        if self._end > MOST_BYTES:
            raise BadBox("it claims to be larger than any box is")
        self.path = path
        self.source = source
        writer = identity(header, trusted=False)
        self.process = writer.pid, writer.start_ticks or 0
        """Pid and start ticks of its process."""
        self.cursors = {name: 0 for name, (_, capacity, _) in self._rings.items() if capacity}
        """Ring -> sequence number of the newest record that arrived."""
        self.lost = 0
        """Records that the ring overwrote before they were sent."""
        self._ahead = ahead
        self._visible = False
        self._draft = path.with_name(f".{path.name}.tmp")
        self._draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._draft, flags, 0o600)
        os.ftruncate(descriptor, self._end)
        os.close(descriptor)

    def add_records(self, ring: str, first: int, raw: bytes) -> None:
        """Writes records of a ring; counts those missing since the last ones."""
        offset, capacity, size = self._rings[ring]
        count = len(raw) // size
        if not capacity or not 0 < count <= capacity or len(raw) % size:
            raise BadStream("it sends records that do not fit into their ring")
        slot = (first - 1) % capacity
        before_end = min(count, capacity - slot)
        self._write(raw[: before_end * size], offset + slot * size)
        self._write(raw[before_end * size :], offset)
        newest = self.cursors[ring]
        if self._visible:  # what the ring had overwritten before anyone listened is not lost
            self.lost += max(0, first - newest - 1)
        self.cursors[ring] = max(newest, first + count - 1)

    def add_chunk(self, at: int, packed: bytes) -> None:
        """Writes a part of an area that is no ring."""
        chunk = _unpack(packed)
        if at < layout.HEADER_SIZE or at + len(chunk) > self._end:
            raise BadStream("it sends data that lies outside of its black box")
        self._write(chunk, at)

    def add_header(self, packed: bytes) -> None:
        """Writes the header, compressed too, which makes visible what arrived before."""
        header = _unpack(packed)
        if len(header) != layout.HEADER_SIZE or not header.startswith(layout.MAGIC):
            raise BadStream("it sends a header that is none")
        self._write(self._as_seen_here(header), 0)
        if not self._visible:
            self._draft.replace(self.path)
            self._visible = True

    def _as_seen_here(self, header: bytes) -> bytes:
        """The header with the wall clock of this machine, so that its ranks compare with others',
        and without a boot id, so that it names no process of this machine, whatever it claims."""
        changed = bytearray(header)
        changed[_BOOT_AT : _BOOT_AT + _BOOT_SIZE] = bytes(_BOOT_SIZE)
        (realtime,) = struct.unpack_from("=q", header, _REALTIME_AT)
        realtime -= round(self._ahead * 1e9)
        struct.pack_into("=q", changed, _REALTIME_AT, min(max(realtime, 0), (1 << 63) - 1))
        return bytes(changed)

    def _write(self, data: bytes, at: int) -> None:
        """Opens the file each time: a thousand ranks would take more descriptors than there are."""
        if not data:
            return
        path = self.path if self._visible else self._draft
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while data:
                written = os.pwrite(descriptor, data, at)
                data, at = data[written:], at + written
        finally:
            os.close(descriptor)


def _unpack(packed: bytes) -> bytes:
    """At most a chunk. Raises BadStream."""
    try:
        return zlib.decompressobj().decompress(packed, CHUNK)
    except zlib.error:
        raise BadStream("it sends damaged data") from None
