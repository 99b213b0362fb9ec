"""Hostile changes to black boxes: right by their checksums, wrong in what they say."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from mgpu_probes.inprocess import layout

from tests.fuzz.byte_damage import damaged
from tests.fuzz.folders import write_sparse
from tests.fuzz.hostile_values import Hostile
from tests.fuzz.json_changes import changed_text
from tests.fuzz.mutation_context import Scene

RANK, LOCAL_RANK, WORLD_SIZE, ATTEMPT, STAGE, STAGES, HOST = range(23, 30)
_WORDS = (
    layout.GENERATION_FIRST,
    layout.GENERATION_LAST,
    layout.STEP_CURSOR,
    layout.EVENT_CURSOR,
    layout.STRINGS_USED,
    layout.BIRTH_SLOT,
    layout.HISTORY_ACTIVE,
    *layout.HISTORY_CURSOR,
    *layout.HISTORY_WINDOW,
    layout.NOW_PHASE,
    layout.NOW_SINCE,
    layout.NOW_SITE,
    layout.NOW_SEQUENCE,
    layout.STATE,
    layout.EXIT_CODE,
    layout.ENDED,
    layout.PROBE_COST,
    layout.WORDS_USED,
    layout.DEVICE_AREA,
    layout.DEVICE_CURSOR,
    layout.DEVICE_RECORDS,
)
MOST_DISK = 12 << 20
"""Bytes of copies: what an honest recording of this size takes is no fault."""
_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e38, 3.4e38, float("inf"), float("-inf"), float("nan"))
_SITES = (b"\x1b]0;owned\x07", b"\xff\xfe\x9b2J", b"\x00\n\r", "\u202e.py:1".encode(), b"a" * 600)


class BoxBytes:
    """A box in memory, with the places of everything in it, as its own header tells them."""

    def __init__(self, raw: bytes) -> None:
        self.raw = bytearray(raw)
        self.fields = list(layout.IDENTITY.unpack_from(raw))
        self.birth, self.birth_slot, self.strings, self.strings_size = self.fields[5:9]
        self.steps, self.step_capacity, self.events, self.event_capacity = self.fields[9:13]
        self.history, self.history_capacity, self.words, self.words_size = self.fields[13:17]

    def word(self, at: int) -> int:
        return int(struct.unpack_from("=Q", self.raw, at)[0])

    def set_word(self, at: int, value: int) -> None:
        struct.pack_into("=Q", self.raw, at, value & (1 << 64) - 1)

    def set_fields(self) -> None:
        layout.IDENTITY.pack_into(self.raw, 0, *self.fields)

    def records(self, kind: str) -> list[int]:
        """Offsets of the records of that kind that hold something."""
        at, count, size = {
            "step": (self.steps, self.step_capacity, layout.STEP_SIZE),
            "event": (self.events, self.event_capacity, layout.EVENT_SIZE),
            "history": (self.history, 2 * self.history_capacity, layout.STEP_SIZE),
        }[kind]
        places = (at + number * size for number in range(count))
        return [place for place in places if self.word(place)]


Change = Callable[[BoxBytes, Hostile], None]


def changed_box(scene: Scene) -> str:
    """One box, or all of them in the same way, say something hostile."""
    rng = scene.rng
    files = scene.files(layout.BOX_SUFFIX)
    if not files:
        return "no box"
    chosen = files if rng.random() < 0.3 else [rng.choice(files)]
    change = rng.choice(_CHANGES)
    seed = rng.random()
    for path in chosen:
        box = BoxBytes(path.read_bytes())
        change(box, Hostile(Random(seed), scene.canary))
        write_sparse(path, bytes(box.raw))
    return f"{change.__name__} in {len(chosen)} boxes"


def damaged_box(scene: Scene) -> str:
    """Bytes of a box are damaged, those of its header more often than others."""
    rng = scene.rng
    path = scene.file(layout.BOX_SUFFIX)
    if path is None:
        return "no box"
    raw = path.read_bytes()
    head = rng.choice((512, layout.HEADER_SIZE, len(raw)))
    path.write_bytes(damaged(raw[:head], rng) + raw[head:])
    return f"{path.name} damaged within its first {head} bytes"


def more_boxes(scene: Scene) -> str:
    """Copies of a box: the same rank again, other attempts, or hundreds of ranks."""
    rng = scene.rng
    path = scene.file(layout.BOX_SUFFIX)
    if path is None:
        return "no box"
    disk = max(1, 512 * path.stat().st_blocks)
    count = min(rng.choice((1, 2, 60)), MOST_DISK // disk)
    apart = rng.random() < 0.5
    raw = path.read_bytes()
    for number in range(count):
        box = BoxBytes(raw)
        if apart:
            box.fields[RANK] = rng.choice((number, number * 1000, 2**31 - 1 - number))
            box.fields[ATTEMPT] = rng.choice((0, number, 2**31 - 1))
            box.set_fields()
        host, pid = rng.choice(("n1", "..", "\x1b[2J", "a" * 100)), rng.randrange(1, 2**40)
        name = f"{host}.{pid}.{number}{layout.BOX_SUFFIX}"
        write_sparse(path.with_name(name), bytes(box.raw))
    return f"{count} more boxes"


def _identity(box: BoxBytes, hostile: Hostile) -> None:
    rng = hostile.rng
    for _ in range(rng.choice((1, 2, 4))):
        place = rng.choice((*range(17, 22), *(RANK, WORLD_SIZE, ATTEMPT, STAGE, STAGES) * 2, HOST))
        if place == HOST:
            host = hostile.text().encode("utf-8", "surrogatepass")
            box.fields[HOST] = rng.choice((host[:64], rng.randbytes(64)))
            continue
        bits = {17: 32, 18: 32, 19: 64, 20: 63, 21: 63}.get(place, 31)
        least = 0 if place < 20 else -(1 << bits)
        edges = (0, 1, 2, 3, 100, 65_535, (1 << bits) - 1, (1 << bits) // 2, -1, least)
        value = rng.choice(edges)
        box.fields[place] = max(least, min((1 << bits) - 1, value))
    box.set_fields()


def _geometry(box: BoxBytes, hostile: Hostile) -> None:
    rng = hostile.rng
    place = rng.randrange(0, 17)
    if place == 0:
        box.fields[0] = rng.randbytes(8)
    else:
        most = (1 << (16 if place < 3 else 32)) - 1
        old = int(box.fields[place])
        edges = (0, 1, old - 1, old + 1, old * 2, 1 << 16, 1 << 18, most, hostile.whole())
        box.fields[place] = max(0, min(most, rng.choice(edges)))
    box.set_fields()


def _header_word(box: BoxBytes, hostile: Hostile) -> None:
    rng = hostile.rng
    for _ in range(rng.choice((1, 3))):
        at = rng.choice(_WORDS)
        old = box.word(at)
        new = rng.choice((hostile.whole(), old + 1, old - 1, old << 32, old >> 8, old * 2, 0))
        box.set_word(at, new)


def _records(kind: str, form: struct.Struct, crc_at: int) -> Change:
    """A change of one field of the records of a kind, mostly with the right checksum."""

    def change(box: BoxBytes, hostile: Hostile) -> None:
        rng = hostile.rng
        places = box.records(kind)
        if not places:
            return
        some = rng.sample(places, min(len(places), rng.choice((1, 5))))
        chosen = rng.choice((places, some, places[-1:], places[len(places) // 2 :]))
        last = len(form.unpack_from(box.raw)) - 1  # the checksum
        field = rng.randrange(0 if rng.random() < 0.2 else 1, last)
        same = rng.random() < 0.6
        value = _field_value(hostile)
        for at in chosen:
            fields = list(form.unpack_from(box.raw, at))
            for fitting in _nearest(fields[field], value if same else _field_value(hostile)):
                fields[field] = fitting
                with suppress(struct.error, OverflowError):
                    form.pack_into(box.raw, at, *fields)
                    break
            if rng.random() < 0.97:
                right = zlib.crc32(box.raw[at : at + crc_at])
                struct.pack_into("=I", box.raw, at + crc_at, right)

    change.__name__ = f"_{kind}_records"
    return change


def _field_value(hostile: Hostile) -> int | float | bytes:
    rng = hostile.rng
    text = rng.choice((*_SITES, hostile.text().encode("utf-8", "surrogatepass")))
    return rng.choice((hostile.whole(), rng.choice(_FLOATS), text, rng.randrange(300)))


def _nearest(old: object, value: int | float | bytes) -> list[Any]:
    """The value as the type of a field allows, the best first: others where it does not fit."""
    number = len(value) if isinstance(value, bytes) else value
    if isinstance(old, bytes):
        return [value if isinstance(value, bytes) else repr(value).encode()]
    if isinstance(old, float):
        most = 10**38
        return [max(-most, min(most, number)) if isinstance(number, int) else number, 1e38]
    whole = number if isinstance(number, int) else -1
    edges = [(1 << bits) - 1 for bits in (64, 63, 32, 31, 16, 15, 8)]
    return [whole, *(one for most in edges for one in (max(-1, min(most, whole)), most & whole))]


def _birth(box: BoxBytes, hostile: Hostile) -> None:
    published = box.word(layout.BIRTH_SLOT)
    slot, length = published >> 32, published & 0xFFFFFFFF
    at = box.birth + (slot & 1) * box.birth_slot
    old = bytes(box.raw[at : at + length]).decode("utf-8", "replace") or "{}"
    new = changed_text(old, hostile)[: box.birth_slot]
    box.raw[at : at + len(new)] = new
    box.set_word(layout.BIRTH_SLOT, slot << 32 | len(new))


def _last_words(box: BoxBytes, hostile: Hostile) -> None:
    rng = hostile.rng
    length = box.word(layout.WORDS_USED)
    old = bytes(box.raw[box.words : box.words + length]).decode("utf-8", "replace")
    honest = {
        "type": "ValueError",
        "message": "bad loss",
        "traceback": [["train.py", 87, "main"]],
        "off": "the disk is full",
        "text": "Traceback (most recent call last):\n  ...\n",
    }
    new = changed_text(old if old.strip() else json.dumps(honest), hostile)[: box.words_size]
    box.raw[box.words : box.words + len(new)] = new
    box.set_word(layout.WORDS_USED, len(new))
    if rng.random() < 0.6:
        box.set_word(layout.STATE, rng.choice((layout.FAILED, layout.OFF, layout.ENDED_CLEAN)))


def _site(box: BoxBytes, hostile: Hostile) -> None:
    rng = hostile.rng
    text = rng.choice((*_SITES, hostile.text().encode("utf-8", "surrogatepass")))[:60_000]
    told = rng.choice((len(text), 0xFFFF, 0))
    whole = struct.pack("=H", told) + text
    box.raw[box.strings : box.strings + len(whole)] = whole
    box.set_word(layout.STRINGS_USED, rng.choice((len(whole), box.strings_size, 2**63)))
    box.set_word(layout.NOW_SITE, 1)
    if not box.word(layout.NOW_SINCE):
        box.set_word(layout.NOW_SINCE, 1)


_step_records = _records("step", layout.STEP, layout.STEP_CRC_AT)
_history_records = _records("history", layout.STEP, layout.STEP_CRC_AT)
_event_records = _records("event", layout.EVENT, layout.EVENT_CRC_AT)
_CHANGES = (
    _identity,
    _identity,
    _geometry,
    _header_word,
    _header_word,
    _step_records,
    _step_records,
    _history_records,
    _event_records,
    _birth,
    _birth,
    _last_words,
    _site,
)
