"""Writes the history of a black box: sums of step records over windows of time.

When an area is full, the windows double, so that a fixed space holds a run of any length.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import filterfalse
from math import isnan, nan
from mmap import mmap

from . import layout
from .boxfile import Sizes
from .layout import STEP_SIZE
from .step_record import I64, U16, U32, clamp_single

SUM = struct.Struct(layout.STEP.format[:-1].replace("4x", "I"))
"""A step record without its CRC; the reserved word is the number of steps of a history record (0 in
a step record), because `micro_batches` ends at 65535."""
_ROW = struct.Struct(SUM.format + "I")
_CRC = struct.Struct("=I")
_FIRST_PHASE = 5
_SAMPLES = _FIRST_PHASE + len(layout.PHASES)


def _total(column: Sequence[float]) -> float:
    total = sum(column)
    if isnan(total):
        known = list(filterfalse(isnan, column))
        total = sum(known) if known else nan
    return clamp_single(total)


def summed(sequence: int, records: bytes) -> bytes:
    """One history record (without CRC) of step or history `records`, oldest first."""
    columns = list(zip(*_ROW.iter_unpack(records), strict=True))
    _, end, wall, step, flags = columns[:_FIRST_PHASE]
    samples, tokens, loss, gc, group_seq, calls, _ = columns[_SAMPLES : _SAMPLES + 7]
    cpu, device, stage, group, count, resident, _ = columns[_SAMPLES + 7 :]
    any_flags = 0
    for flag in set(flags):
        any_flags |= flag
    known_loss = list(filterfalse(isnan, loss))
    steps = min(sum(count) + count.count(0), U32)  # 0: the record is a single step
    return SUM.pack(
        sequence,
        end[-1],
        max(-I64, min(sum(wall), I64)),
        step[-1],
        any_flags,
        *map(_total, columns[_FIRST_PHASE:_SAMPLES]),
        min(sum(samples), U32),
        min(sum(tokens), U32),
        known_loss[-1] if known_loss else nan,
        _total(gc),
        group_seq[-1],
        min(sum(calls), U16),
        min(steps, U16),
        _total(cpu),
        max(device),
        stage[-1],
        group[-1],
        steps,
        max(resident),
    )


class History:
    """Writes the two history areas. `add` and `roll` may raise; the black box catches it."""

    def __init__(self, box: mmap, words: memoryview, offset: int, sizes: Sizes) -> None:
        self._box = box
        self._words = words
        self._offset = offset
        self._capacity = sizes.history
        self._window = sizes.window_ns
        self._area = 0
        self._cursor = 0
        self._sum = b""
        words[layout.HISTORY_WINDOW[0] // 8] = sizes.window_ns

    def add(self, records: bytes) -> None:
        """Adds step records to the open window, whose record follows the one at the cursor."""
        if records:
            self._sum = self._put(
                self._area, self._cursor, summed(self._cursor + 1, self._sum + records)
            )

    def roll(self, end_ns: int) -> int:
        """Closes the open window and returns the end of the one that holds `end_ns`, monotonic
        ns."""
        if self._sum:
            self._sum = b""
            self._cursor += 1
            self._words[layout.HISTORY_CURSOR[self._area] // 8] = self._cursor
            if self._cursor == self._capacity:
                self._coarsen()
        return (end_ns // self._window + 1) * self._window

    def _put(self, area: int, slot: int, body: bytes) -> bytes:
        record = body + _CRC.pack(zlib.crc32(body))
        at = self._start(area) + slot * STEP_SIZE
        self._box[at : at + STEP_SIZE] = record
        return record

    def _start(self, area: int) -> int:
        return self._offset + area * self._capacity * STEP_SIZE

    def _coarsen(self) -> None:
        """Merges all records into the other area. The old area stays valid until the last store."""
        start = self._start(self._area)
        size = self._capacity * STEP_SIZE
        records = self._box[start : start + size]
        ends = [row[1] for row in _ROW.iter_unpack(records)]
        window = self._window * 2
        while len({end // window for end in ends}) > self._capacity // 2:
            window *= 2
        groups: dict[int, list[bytes]] = {}
        for slot, end in enumerate(ends):
            record = records[slot * STEP_SIZE : (slot + 1) * STEP_SIZE]
            groups.setdefault(end // window, []).append(record)
        other = 1 - self._area
        # Zeroed first: the record after the cursor must never be a stale one.
        self._box[self._start(other) : self._start(other) + size] = bytes(size)
        for slot, group in enumerate(groups.values()):
            self._put(other, slot, summed(slot + 1, b"".join(group)))
        self._words[layout.HISTORY_CURSOR[other] // 8] = len(groups)
        self._words[layout.HISTORY_WINDOW[other] // 8] = window
        self._words[layout.HISTORY_ACTIVE // 8] = other
        self._area, self._cursor, self._window = other, len(groups), window
