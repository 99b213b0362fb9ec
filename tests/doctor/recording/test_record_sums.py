"""Which records of a block are intact: one checksum over all gives the same as one for each."""

from __future__ import annotations

import random
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mgpu_probes.inprocess import layout

from mgpu_doctor.recording.records import STEP_DTYPE, TOGETHER, sound

SIZE = layout.STEP_SIZE
counts = st.integers(1, 3 * TOGETHER)


def block(count: int, seed: int) -> bytearray:
    bytes_of = random.Random(seed).randbytes
    bodies = [bytes_of(SIZE - 4) for _ in range(count)]
    return bytearray(b"".join(body + np.uint32(zlib.crc32(body)).tobytes() for body in bodies))


def one_by_one(raw: bytes, chosen: list[int]) -> list[int]:
    found = []
    for place in chosen:
        record = raw[place * SIZE : (place + 1) * SIZE]
        stored = int(np.frombuffer(record[-4:], "u4")[0])
        if zlib.crc32(record[:-4]) == stored:
            found.append(place)
    return found


@given(counts, st.integers(0, 2**32), st.data())
def test_all_at_once_says_what_each_says(count: int, seed: int, data: st.DataObject) -> None:
    raw = block(count, seed)
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=3)):
        raw[at] ^= data.draw(st.integers(0, 255))
    first = data.draw(st.integers(0, count - 1))
    chosen = list(range(first, count))
    if data.draw(st.booleans()):
        chosen = chosen[::2]
    found = sound(bytes(raw), STEP_DTYPE, np.array(chosen, dtype=np.intp))
    assert found.tolist() == one_by_one(bytes(raw), chosen)


@given(st.integers(0, 2**32), st.integers(0, TOGETHER - 1), st.integers(0, TOGETHER - 1))
def test_two_whole_records_changing_places_stay_whole(seed: int, one: int, other: int) -> None:
    """Their order is told by their sequence numbers, not by sums."""
    raw = block(TOGETHER, seed)
    first, second = (slice(place * SIZE, (place + 1) * SIZE) for place in (one, other))
    raw[first], raw[second] = raw[second], raw[first]
    assert len(sound(bytes(raw), STEP_DTYPE, np.arange(TOGETHER))) == TOGETHER
