"""Damage to bytes that knows nothing of their format."""

from __future__ import annotations

from random import Random

MOST = 8 << 20
"""Bytes of what comes out."""
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def damaged(data: bytes, rng: Random) -> bytes:
    """`data` after one to five random changes."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        data = rng.choice(_CHANGES)(data, rng)[:MOST]
    return data


def _flip(data: bytes, rng: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, rng: Random) -> bytes:
    """With an integer at an edge, of a size and byte order that files use."""
    size = rng.choice((1, 2, 4, 8))
    number = rng.choice(_EDGES) & ((1 << 8 * size) - 1)
    at = _place(data, rng) // size * size if rng.random() < 0.5 else _place(data, rng)
    return data[:at] + number.to_bytes(size, rng.choice(("little", "big"))) + data[at + size :]


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: _place(data, rng)]


def _behead(data: bytes, rng: Random) -> bytes:
    return data[_place(data, rng) :]


def _remove(data: bytes, rng: Random) -> bytes:
    first, end = _stretch(data, rng)
    return data[:first] + data[end:]


def _repeat(data: bytes, rng: Random) -> bytes:
    first, end = _stretch(data, rng)
    return data[:first] + data[first:end] * rng.choice((2, 3, 20, 500)) + data[end:]


def _move(data: bytes, rng: Random) -> bytes:
    first, end = _stretch(data, rng)
    rest = data[:first] + data[end:]
    at = _place(rest, rng)
    return rest[:at] + data[first:end] + rest[at:]


def _fill(data: bytes, rng: Random) -> bytes:
    first, end = _stretch(data, rng)
    return (
        data[:first] + rng.choice((b"\x00", b"\xff", b"\n", b"\x1b")) * (end - first) + data[end:]
    )


def _insert(data: bytes, rng: Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.randbytes(rng.choice((1, 4, 64, 5000))) + data[at:]


def _twice(data: bytes, rng: Random) -> bytes:
    return data * rng.choice((2, 3))


def _place(data: bytes, rng: Random) -> int:
    """Half the time near the beginning, where headers are."""
    most = len(data) if rng.random() < 0.5 else min(len(data), 512)
    return rng.randrange(most + 1)


def _stretch(data: bytes, rng: Random) -> tuple[int, int]:
    first = _place(data, rng)
    return first, min(len(data), first + rng.choice((1, 8, 64, 700, 10_000, len(data))))


_CHANGES = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _cut,
    _behead,
    _remove,
    _repeat,
    _move,
    _fill,
    _insert,
    _twice,
)
