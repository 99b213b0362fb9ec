"""Hostile protocol buffers: lengths that lie, fields of another kind, messages in messages."""

from __future__ import annotations

from random import Random

from tests.fuzz.byte_damage import damaged
from tests.fuzz.hostile_values import Hostile
from tests.fuzz.mutation_context import Scene
from tests.support.xplane import varint

Fields = list[tuple[int, int, int | bytes]]
"""Number, wire type, value (https://protobuf.dev/programming-guides/encoding/)."""
MOST_DEPTH = 5


def changed_profile(scene: Scene) -> str:
    """One message of a profile says something hostile."""
    rng = scene.rng
    path = scene.file(".pb")
    if path is None or not path.name.endswith(".pb"):
        return "no profile"
    raw = path.read_bytes()
    for _ in range(rng.choice((1, 2, 6))):
        raw = _changed(raw, rng, scene.hostile, 0)[: 4 << 20]
    path.write_bytes(raw)
    return f"changed messages in {path.name}"


def parsed(raw: bytes) -> Fields | None:
    """The fields of a message; None where it is none."""
    fields: Fields = []
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if not number or at > len(raw):
            return None
        value: int | bytes
        if kind == 0:
            value, at = _varint(raw, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = raw[at : at + size], at + size
        elif kind == 2:
            length, at = _varint(raw, at)
            value, at = raw[at : at + length], at + length
        else:
            return None
        if at > len(raw):
            return None
        fields.append((number, kind, value))
    return fields


def written(fields: Fields) -> bytes:
    parts = []
    for number, kind, value in fields:
        parts.append(varint(number << 3 | kind))
        if isinstance(value, int):
            parts.append(varint(value & (1 << 64) - 1))
        else:
            parts += [varint(len(value)), value] if kind == 2 else [value]
    return b"".join(parts)


def _changed(raw: bytes, rng: Random, hostile: Hostile, depth: int) -> bytes:
    fields = parsed(raw)
    if not fields or depth > MOST_DEPTH:
        return damaged(raw, rng)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    if isinstance(value, bytes) and kind == 2 and rng.random() < 0.7:
        fields[at] = number, kind, _changed(value, rng, hostile, depth + 1)
        return written(fields)
    change = rng.randrange(7)
    if change == 0:
        del fields[at]
    elif change == 1:
        fields[at:at] = [fields[at]] * rng.choice((1, 50, 2000 if len(raw) < 2000 else 2))
    elif change == 2:
        fields[at] = rng.choice((1, 2, 3, 4, 5, 6, 2**29 - 1)), kind, value
    elif change == 3:
        fields[at] = number, 0, hostile.whole()
    elif change == 4:
        fields[at] = number, 2, hostile.text().encode("utf-8", "surrogatepass")
    elif change == 5:
        nested = b""
        for _ in range(rng.choice((10, 3000))):
            nested = varint(number << 3 | 2) + varint(len(nested)) + nested
        fields[at] = number, 2, nested
    else:  # a length beyond the end
        lie = varint(number << 3 | 2) + varint(rng.choice((2**31, 2**63, 2**64 - 1, len(raw))))
        return written(fields[:at]) + lie + written(fields[at:])
    return written(fields)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
        shift += 7
    return 0, len(raw) + 1
