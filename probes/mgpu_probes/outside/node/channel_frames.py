"""The frames that the agent on a host sends to its reader.

A frame: the length of its rest (u32), the length of its head (u16), its head (a JSON object whose
`kind` names it), its body (bytes). Numbers are little-endian. The stream begins with `MAGIC`: what
a login shell prints before it is skipped. `LINE_END` between frames is skipped, too. Both sides use
this module."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

MAGIC = b"\0mgpu-doctor agent 1\n"
LINE_END = b"\n" * 4
"""After the last frame that is sent at a time: srun keeps what ends in the middle of a line. As a
length it is longer than any frame."""
MOST_BANNER = 1 << 16
"""Bytes that a login shell may print before the first frame."""
MOST_FRAME = 1 << 20
"""Bytes of a frame without its own length."""
MOST_BODY = 1 << 19
"""Bytes of a body that the agent fills: large data is sent in several frames."""
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<H")
(_NO_FRAME,) = _LENGTH.unpack(LINE_END)
_encode = json.JSONEncoder(separators=(",", ":")).encode


class BadStream(ValueError):  # noqa: N818 - a noun, like BadBox
    """What arrives is not an agent's stream. The message is a part of a sentence."""


class RawFrame(NamedTuple):
    """A frame as it arrived: its head is JSON that nobody has parsed yet."""

    head: bytes
    body: bytes


def pack_frame(kind: str, body: bytes = b"", **facts: Any) -> bytes:
    """One frame. Raises ValueError if it is too long."""
    head = _encode({"kind": kind, **facts}).encode()
    length = _HEAD.size + len(head) + len(body)
    if length > MOST_FRAME or len(head) > 0xFFFF:
        raise ValueError(f"a frame of {length} bytes is too long")
    return _LENGTH.pack(length) + _HEAD.pack(len(head)) + head + body


class FrameSplitter:
    """Splits a stream into frames, whatever the sizes in which it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._began = False

    @property
    def began(self) -> bool:
        """Whether the stream's beginning has arrived."""
        return self._began

    def feed(self, data: bytes) -> Iterator[RawFrame]:
        """Adds bytes; yields the frames that are complete. Raises BadStream."""
        self._buffer += data
        if not self._began:
            at = self._buffer.find(MAGIC)
            if at < 0:
                if len(self._buffer) > MOST_BANNER:
                    raise BadStream("it prints text instead of starting the agent")
                return
            del self._buffer[: at + len(MAGIC)]
            self._began = True
        used = 0
        try:
            while len(self._buffer) - used >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, used)
                if length == _NO_FRAME:
                    used += _LENGTH.size
                    continue
                if not _HEAD.size <= length <= MOST_FRAME:
                    raise BadStream(f"it announces a frame of {length} bytes")
                first = used + _LENGTH.size
                if len(self._buffer) - first < length:
                    return
                (head,) = _HEAD.unpack_from(self._buffer, first)
                first, last = first + _HEAD.size, first + length
                if first + head > last:
                    raise BadStream("it announces a head that is longer than its frame")
                used = last
                yield RawFrame(
                    bytes(self._buffer[first : first + head]),
                    bytes(self._buffer[first + head : last]),
                )
        finally:
            del self._buffer[:used]
