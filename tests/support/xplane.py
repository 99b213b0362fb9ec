"""Writes the few messages that a profile of TensorFlow is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Field = tuple[int, int | bytes]


def message(*fields: Field) -> bytes:
    return b"".join(
        varint(number << 3 | 2) + varint(len(value)) + value
        if isinstance(value, bytes)
        else varint(number << 3) + varint(value)
        for number, value in fields
    )


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def event(name: int, start: int, length: int, statistics: Mapping[int, int] | None = None) -> bytes:
    """Picoseconds."""
    fields = [(4, message((1, key), (4, value))) for key, value in (statistics or {}).items()]
    return message((1, name), (2, start), (3, length), *fields)


def line(name: str, at: int, events: Sequence[bytes]) -> bytes:
    """`at`: nanoseconds."""
    return message((2, name.encode()), (3, at), *((4, event) for event in events))


def plane(
    name: str, lines: Sequence[bytes], names: Mapping[int, str], statistics: Mapping[int, str]
) -> bytes:
    """Names behind the lines, as TensorFlow writes them."""
    return message(
        (2, name.encode()),
        *((3, line) for line in lines),
        *((4, _entry(key, value)) for key, value in names.items()),
        *((5, _entry(key, value)) for key, value in statistics.items()),
    )


def space(*planes: bytes, host: str = "node") -> bytes:
    return message(*((1, plane) for plane in planes), (4, host.encode()))


def _entry(key: int, name: str) -> bytes:
    return message((1, key), (2, message((1, key), (2, name.encode()))))
