"""The encoding of protocol buffers, as much as is needed to pass through a message without a
schema's code, and without believing any length that stands in it.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, WIDE, BYTES, NARROW = 0, 1, 2, 5
Part = tuple[int, int]
"""Where the content of a field with a length begins and ends."""


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
